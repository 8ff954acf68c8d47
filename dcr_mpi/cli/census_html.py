"""A census as one page that needs nothing else: tables, and plots as SVG inside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from ..units import bytes_text as size
from .census_text import answer, bits, common, distance, layer, mask, power, rate, sample, steps

_LABEL, _PLOT, _TEXT, _ROW = 300, 420, 200, 20  # pixels
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 980px; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; } p { max-width: 60em; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
rect { fill: #3b6ea5; } .dim { color: #666; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; } rect { fill: #6fa3dc; } .dim { color: #999; }
}
"""
Bar = tuple[str, float, str]  # label, length, text at its end


def page(result: dict[str, Any]) -> str:
    """The page of a census, HTML 5."""
    head = f"{result['base']} to {result['new']}"
    parts = [
        f"<h1>What changed</h1><p class=dim>{escape(head)}</p><p><b>{escape(answer(result))}</b></p>",
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
    title = escape(f"dcr census: {head}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _dtype(kind: dict[str, Any]) -> list[str]:
    name, changed = kind["dtype"], kind["changed"]
    parts = []
    if kind["exponents"]:
        bars = [_rated(r, power(r)) for r in reversed(kind["exponents"])]
        parts.append(
            _section(
                f"{name}: changed, by exponent of the earlier word",
                "Logarithmic. A step that is as large for every weight doubles the rate from one "
                "exponent to the next below.",
                bars,
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


def _section(title: str, note: str, bars: Sequence[Bar], logarithmic: bool = False) -> str:
    return f"<h2>{escape(title)}</h2><p class=dim>{escape(note)}</p>{_bars(title, bars, logarithmic)}"


def _bars(title: str, bars: Sequence[Bar], logarithmic: bool) -> str:
    """Horizontal bars; each has its label before it, its text after it, and both in its tooltip."""
    lengths = _lengths([value for _, value, _ in bars], logarithmic)
    rows = []
    for k, ((label, _, text), length) in enumerate(zip(bars, lengths, strict=True)):
        y = k * _ROW
        short = label if len(label) <= 44 else "…" + label[-43:]
        rows.append(
            f'<g><title>{escape(label)}: {escape(text)}</title><text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">'
            f'{escape(short)}</text><rect x="{_LABEL}" y="{y + 3}" width="{length * _PLOT:.1f}" height="{_ROW - 6}"/>'
            f'<text x="{_LABEL + length * _PLOT + 6:.1f}" y="{y + 14}">{escape(text)}</text></g>'
        )
    width, height = _LABEL + _PLOT + _TEXT, max(len(bars), 1) * _ROW
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(rows)}</svg>'


def _lengths(values: Sequence[float], logarithmic: bool) -> list[float]:
    """Bars from 0 to 1; on a logarithmic scale from half the smallest value that is not zero."""
    positive = [v for v in values if v > 0]
    if not positive:
        return [0.0] * len(values)
    high = max(positive)
    if not logarithmic:
        return [v / high for v in values]
    low = min(positive) / 2
    return [math.log(v / low) / math.log(high / low) if v > 0 else 0.0 for v in values]
