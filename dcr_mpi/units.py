"""Numbers as people read them in logs and tables."""

from __future__ import annotations


def bytes_text(amount: float) -> str:
    """Bytes with a binary unit and three digits, as in ``1.25 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f} {unit}"


def seconds_text(amount: float) -> str:
    """Seconds, or minutes and seconds from two minutes on."""
    return f"{amount:.2f} s" if amount < 120 else f"{int(amount // 60)} min {int(amount % 60)} s"
