"""Tables of what was measured, and the paper's claims beside it."""

from __future__ import annotations

from collections.abc import Sequence

from .run import Result, Row

_EXPECTED_BITS = {
    1: 14.1,
    3: 12.6,
    5: 11.8,
}  # of u16 gaps and XOR on Adam-law data, from the reference system's own code


def table(result: Result) -> str:
    """One data set: a line per scheme; speeds as ratios to memcpy."""
    first, f = result.rows[0], result.floors
    reference = next(r for r in result.rows if r.scheme == "u16 gaps, xor").payload_bytes
    head = (
        f"{result.data}: {first.changed_fraction:.3%} of {first.dense_bytes / 2**20:.0f} MiB changed; "
        f"memcpy {first.memcpy_gb_s:.1f} GB/s\n"
        f"  floors, bits per changed weight: positions {f.positions:.2f}, given the exponent "
        f"{f.positions_by_exponent:.2f}; ulp differences {f.values:.2f}, given the exponent "
        f"{f.values_by_exponent:.2f}; together {f.by_exponent:.2f}"
    )
    columns = [
        "scheme",
        "bits/ch",
        "x floor",
        "u16-xor/it",
        "encode GB/s",
        "encode",
        "coding",
        "checked",
        "prepare",
        "apply",
    ]
    lines = [columns]
    for row in result.rows:
        lines.append(
            [
                row.scheme,
                f"{row.bits_per_changed:.2f}",
                f"{row.bits_per_changed / row.floor_bits:.3f}",
                f"{reference / row.payload_bytes:.2f}",
                f"{row.encode_gb_s:.2f}",
                *("-" if value is None else f"{value / row.memcpy_gb_s:.3f}" for value in speeds(row)),
            ]
        )
    return head + "\n" + aligned(lines)


def speeds(row: Row) -> tuple[float | None, ...]:
    """What the table gives as ratios to memcpy."""
    return row.encode_gb_s, row.coding_gb_s, row.encode_checked_gb_s, row.prepare_gb_s, row.apply_gb_s


def sizes(results: Sequence[Result]) -> str:
    """Many data sets on a line each: sizes only, in bits per changed weight."""
    names = [("ours", "auto, ulp"), ("class", "class, ulp"), ("plain", "plain, ulp"), ("u16 xor", "u16 gaps, xor")]
    names += [("u16 over", "u16 gaps, overwrite"), ("dense xor", "dense XOR")]
    columns = ["data", "changed", "floor", *(n for n, _ in names), "u16 xor/ours", "over/xor", "encode/memcpy"]
    lines = [columns]
    for result in results:
        by = {row.scheme: row for row in result.rows}
        ours, xor = by["auto, ulp"], by["u16 gaps, xor"]
        lines.append(
            [
                result.data,
                f"{ours.changed_fraction:.3%}",
                f"{result.floors.by_exponent:.2f}",
                *(f"{by[scheme].bits_per_changed:.2f}" for _, scheme in names),
                f"{xor.payload_bytes / ours.payload_bytes:.2f}",
                f"{by['u16 gaps, overwrite'].payload_bytes / xor.payload_bytes:.2f}",
                f"{ours.encode_gb_s / ours.memcpy_gb_s:.3f}",
            ]
        )
    return aligned(lines)


def claims(results: Sequence[Result]) -> str:
    """The paper's claims on its own format, and what that format did here."""
    lines = [["data", "overwrite/xor (1.7 to 2.2)", "mixed saves (38 to 40 %)", "xor bits (its own code)"]]
    for result in results:
        by = {row.scheme: row for row in result.rows}
        xor, over, mixed = (by[f"u16 gaps, {s}"] for s in ("xor", "overwrite", "mixed"))
        ratio, saves = over.payload_bytes / xor.payload_bytes, 1 - mixed.payload_bytes / over.payload_bytes
        lines.append(
            [
                result.data,
                f"{ratio:.2f} {_verdict(ratio, 1.7, 2.2)}",
                f"{saves:.0%} {_verdict(saves, 0.38, 0.40)}",
                f"{xor.bits_per_changed:.1f}{_expected(result.family, xor)}",
            ]
        )
    return aligned(lines)


def _verdict(value: float, low: float, high: float) -> str:
    return "below" if value < low - 0.005 else "above" if value > high + 0.005 else "agrees"


def _expected(family: str, row: Row) -> str:
    near = [bits for percent, bits in _EXPECTED_BITS.items() if abs(100 * row.changed_fraction - percent) < 0.1]
    return f" ({near[0]})" if family == "adam" and near else ""


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns: the first to the left, the others to the right."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  " + "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
