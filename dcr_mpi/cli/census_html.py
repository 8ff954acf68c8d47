"""A census as one page that needs nothing else: tables, and plots as SVG inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..units import bytes_text as size
from .census_text import answer, bits, common, distance, layer, mask, power, rate, sample, steps
from .page import page as whole
from .page import section
from .svg import Bar, bars


def page(result: dict[str, Any]) -> str:
    """The page of a census, HTML 5."""
    head = f"{result['base']} to {result['new']}"
    parts = [
        _section(
            "Expected payload, bits per changed word",
            f"Headers and digests included; {sample(result)}. Dense is every changed block whole. Logarithmic.",
            [
                (
                    r["scheme"],
                    r["bits_per_change"] or 0.0,
                    f"{bits(r['bits_per_change'])}; {size(r['bytes'])}, {r['share']:.2%}",
                )
                for r in result["schemes"]
            ],
            logarithmic=True,
        ),
        _section(
            "Changed, by tensor kind",
            "Numbers in names are left out. Logarithmic.",
            [_rated(r, r["kind"]) for r in result["kinds"]],
            logarithmic=True,
        ),
        _section(
            "Changed, by layer", "The first number in a tensor's name.", [_rated(r, layer(r)) for r in result["layers"]]
        ),
    ]
    for kind in result["dtypes"]:
        parts += _dtype(kind) if kind["changed"] else []
    return whole(f"dcr census: {head}", "What changed", head, [answer(result)], parts)


def _dtype(kind: dict[str, Any]) -> list[str]:
    name, changed = kind["dtype"], kind["changed"]
    parts = []
    if kind["exponents"]:
        exponents = [_rated(r, power(r)) for r in reversed(kind["exponents"])]
        parts.append(
            _section(
                f"{name}: changed, by exponent of the earlier word",
                "Logarithmic. A step that is as large for every weight doubles the rate from one "
                "exponent to the next below.",
                exponents,
                logarithmic=True,
            )
        )
    up = f"{kind['up'] / changed:.1%} of the changes go up."
    for title, note, rows, label in (
        (f"distances in {steps(kind)}", up, common(kind["ulp"], 24), distance),
        ("XOR masks", "A carry flips a run of ones.", common(kind["xor"], 24), mask),
    ):
        shares = [(label(r), r["count"] / changed, f"{r['count'] / changed:.2%}; {r['count']}") for r in rows]
        parts.append(_section(f"{name}: {title}", note, shares))
    return parts


def _rated(row: dict[str, Any], label: str) -> Bar:
    return label, row["changed"] / max(row["words"], 1), f"{rate(row)} of {row['words']}"


def _section(title: str, note: str, rows: Sequence[Bar], logarithmic: bool = False) -> str:
    return section(title, note, bars(title, rows, logarithmic))
