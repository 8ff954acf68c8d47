"""A census as text: the answer first, then one table for each question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..units import bytes_text as size

_ROWS = 12  # of a long table
_PLAIN = ("u8", "u16", "u32")
_SHOWN = 0.9999  # share of a histogram that its rows cover


def census(result: dict[str, Any]) -> str:
    """The tables of :func:`dcr_mpi.acts.census.census`."""
    lines = [answer(result)]
    if 2 * sum(t["words"] for t in result["dtypes"] if t["dtype"] in _PLAIN) > result["words"]:
        lines.append(
            "most words are plain unsigned integers: if they are floats, say so, as in --dtype '*.weight=bf16'"
        )
    lines.append("")
    lines += table(
        f"expected payload ({sample(result)})",
        ("scheme", "bytes", "of dense", "bits/change"),
        ((r["scheme"], size(r["bytes"]), f"{r['share']:.2%}", bits(r["bits_per_change"])) for r in result["schemes"]),
    )
    kinds = sorted(result["kinds"], key=lambda r: (-r["words"], r["kind"]))
    lines += table(
        f"tensor kinds{_of(len(kinds))}, the largest first",
        ("kind", "dtype", "tensors", "words", "changed"),
        ((r["kind"], r["dtype"], str(r["tensors"]), str(r["words"]), rate(r)) for r in kinds[:_ROWS]),
    )
    layers = result["layers"]
    lines += table(
        f"layers{_of(len(layers))}",
        ("layer", "tensors", "words", "changed"),
        ((layer(r), str(r["tensors"]), str(r["words"]), rate(r)) for r in layers[:_ROWS]),
    )
    for kind in result["dtypes"]:
        if kind["changed"]:
            lines += _dtype(kind)
    return "\n".join(lines).rstrip()


def answer(result: dict[str, Any]) -> str:
    """The one line that most people want."""
    floats = [t for t in result["dtypes"] if t["float"]]
    words, changed = sum(t["words"] for t in floats), sum(t["changed"] for t in floats)
    share = f"{changed / words:.3%} of {words} float words" if words else "no float words"
    others = result["words"] - words
    rest = f"{(result['changed'] - changed) / others:.3%} of {others} others" if others else "no other words are there"
    best = next(r for r in result["schemes"] if r["scheme"] == "auto")
    return (
        f"census: {share} changed, and {rest}; expected payload {size(best['bytes'])} "
        f"for {size(result['dense_bytes'])} ({best['share']:.2%}), {bits(best['bits_per_change'])} bits per change"
    )


def sample(result: dict[str, Any]) -> str:
    """How much of the checkpoint the payload was measured on."""
    if result["coded_bytes"] == result["dense_bytes"]:
        return "everything was coded"
    return f"from {size(result['coded_bytes'])} that were coded"


def rate(row: dict[str, Any]) -> str:
    return f"{row['changed'] / row['words']:.3%}" if row["words"] else "-"


def bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def layer(row: dict[str, Any]) -> str:
    return "none" if row["layer"] is None else str(row["layer"])


def power(row: dict[str, Any]) -> str:
    """An exponent as people read it."""
    if row["power"] is not None:
        return f"2^{row['power']}"
    return "0, denormal" if row["field"] == 0 else "inf, nan"


def distance(row: dict[str, Any]) -> str:
    """A range of distances in units in the last place."""
    if row["from"] == row["to"]:
        return str(row["to"])
    return f"{row['from']}..{row['to']}" if row["to"] <= 1 << 20 else f"over 2^{(row['from'] - 1).bit_length()}"


def steps(kind: dict[str, Any]) -> str:
    """What a distance is counted in."""
    return "units in the last place" if kind["float"] else "steps"


def mask(row: dict[str, Any]) -> str:
    return f"0x{row['from']:02x}" + (f"..0x{row['to']:x}" if row["from"] != row["to"] else "")


def common(rows: Sequence[dict[str, Any]], limit: int = _ROWS) -> list[dict[str, Any]]:
    """The rows with most counts, in their order, until they cover nearly everything."""
    total, seen, kept = sum(r["count"] for r in rows), 0, set()
    for index in sorted(range(len(rows)), key=lambda k: -rows[k]["count"])[:limit]:
        if seen < _SHOWN * total:
            seen += rows[index]["count"]
            kept.add(index)
    return [rows[k] for k in sorted(kept)]


def _dtype(kind: dict[str, Any]) -> list[str]:
    name, changed = kind["dtype"], kind["changed"]
    lines: list[str] = []
    if kind["exponents"]:
        most = sorted(kind["exponents"], key=lambda r: -r["words"])[:_ROWS]
        lines += table(
            f"{name}: exponents of the earlier words{_of(len(kind['exponents']))}, the largest first",
            ("exponent", "words", "changed", "of changes"),
            (
                (power(r), str(r["words"]), rate(r), f"{r['changed'] / changed:.2%}")
                for r in sorted(most, key=lambda r: -r["field"])
            ),
        )
    lines += table(
        f"{name}: distances in {steps(kind)}, {kind['up'] / changed:.1%} of them up",
        ("distance", "changes", "of changes"),
        ((distance(r), str(r["count"]), f"{r['count'] / changed:.2%}") for r in common(kind["ulp"])),
    )
    return lines + table(
        f"{name}: XOR masks",
        ("mask", "changes", "of changes"),
        ((mask(r), str(r["count"]), f"{r['count'] / changed:.2%}") for r in common(kind["xor"])),
    )


def _of(rows: int) -> str:
    return f" ({_ROWS} of {rows}; --json has all)" if rows > _ROWS else ""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Left-aligned names, right-aligned numbers, and an empty line after them."""
    every = [head, *rows]
    widths = [max(len(row[k]) for row in every) for k in range(len(head))]
    body = [
        "  "
        + "  ".join(cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in every
    ]
    return [title, *(line.rstrip() for line in body), ""]
