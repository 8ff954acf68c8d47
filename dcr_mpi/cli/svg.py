"""Plots as SVG text that needs nothing else, alone in a file or inside a page: bars, stacked bars, lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

Bar = tuple[str, float, str]  # label, length, text at its end
Stack = tuple[str, Sequence[tuple[str, float]], str]  # label, named lengths, text at the end
Series = tuple[str, Sequence[float | None]]  # name, a value for each place on the axis

STYLE = """
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #222; }
svg rect { fill: #3b6ea5; } svg .axis { stroke: #888; stroke-opacity: .35; } svg path { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { svg text { fill: #ddd; } svg rect { fill: #6fa3dc; } }
"""
_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#999999", "#dd8844", "#117777", "#99aa22", "#8866cc", "#bb5566",
)  # fmt: skip
_LABEL, _PLOT, _TEXT, _ROW, _LEGEND = 300, 420, 200, 20, 3  # pixels; entries of a legend beside each other
_HEIGHT = 260  # of a plot of lines


def bars(title: str, rows: Sequence[Bar], logarithmic: bool = False) -> str:
    """Horizontal bars; each has its label before it, its text after it, and both in its tooltip."""
    lengths = _lengths([value for _, value, _ in rows], logarithmic)
    parts = []
    for k, ((label, _, text), length) in enumerate(zip(rows, lengths, strict=True)):
        y = k * _ROW
        parts.append(
            f"<g><title>{escape(label)}: {escape(text)}</title>{_label(label, y)}{_rect(0, length * _PLOT, y)}"
            f"{_text(_LABEL + length * _PLOT + 6, y + 14, text)}</g>"
        )
    return _svg(title, max(len(rows), 1) * _ROW, parts)


def stacked(title: str, rows: Sequence[Stack], unit: Callable[[float], str]) -> str:
    """Horizontal bars made of named pieces, on one linear axis; a name has one colour everywhere, told below."""
    names = list(dict.fromkeys(name for _, pieces, _ in rows for name, _ in pieces))
    top = max((sum(value for _, value in pieces) for _, pieces, _ in rows), default=0.0)
    ticks = _ticks(top)
    high = max(top, ticks[-1]) or 1.0
    bottom = max(len(rows), 1) * _ROW
    parts = [_rule(_LABEL + _PLOT * t / high, bottom) + _text(_LABEL + _PLOT * t / high, bottom + 16, unit(t), "middle")
             for t in ticks]  # fmt: skip
    for k, (label, pieces, text) in enumerate(rows):
        at, y = 0.0, k * _ROW
        parts.append(_label(label, y))
        for name, value in pieces:
            length = _PLOT * value / high
            tip = f"<title>{escape(label)}, {escape(name)}: {escape(unit(value))}</title>"
            parts.append(f"<g>{tip}{_rect(at, length, y, _colour(names, name))}</g>")
            at += length
        parts.append(_text(_LABEL + at + 6, y + 14, text))
    return _svg(title, bottom + 30, parts, names)


def lines(
    title: str, places: Sequence[str], series: Sequence[Series], unit: Callable[[float], str], base: int = 10
) -> str:
    """Lines over places, on a logarithmic axis with a rule at each power of ``base``; what is None or 0 has no point,
    and a line is broken there."""
    found = [v for _, values in series for v in values if v]
    low, high = (min(found), max(found)) if found else (1.0, base)
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    last = max(last, first + 1)
    width, left = _LABEL + _PLOT + _TEXT - 130, 90

    def x(k: int) -> float:
        return left + width * (k + 0.5) / max(len(places), 1)

    def y(value: float) -> float:
        return 10 + _HEIGHT * (last - math.log(value, base)) / (last - first)

    parts = []
    for power in range(first, last + 1):
        at = y(float(base) ** power)
        parts.append(f'<line class="axis" x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(left - 8, at + 4, unit(float(base) ** power), "end"))
    step = -(-len(places) // 16)
    parts += [_text(x(k), _HEIGHT + 28, name, "middle") for k, name in enumerate(places) if k % step == 0]
    names = [name for name, _ in series]
    for name, values in series:
        colour, path, pen = _colour(names, name), [], "M"
        for k, value in enumerate(values):
            if value:
                path.append(f"{pen}{x(k):.1f} {y(value):.1f}")
                tip = f"<title>{escape(places[k])}, {escape(name)}: {escape(unit(value))}</title>"
                parts.append(f'<g>{tip}<circle cx="{x(k):.1f}" cy="{y(value):.1f}" r="4" style="fill:{colour}"/></g>')
            pen = "L" if value else "M"
        parts.append(f'<path d="{"".join(path)}" style="stroke:{colour}"/>' if path else "")
    return _svg(title, _HEIGHT + 40, parts, names)


def _svg(title: str, height: float, parts: Sequence[str], legend: Sequence[str] = ()) -> str:
    width = _LABEL + _PLOT + _TEXT
    wide = width // _LEGEND
    for k, name in enumerate(legend):
        x, y = k % _LEGEND * wide + 8, height + k // _LEGEND * _ROW
        square = f'<rect x="{x}" y="{y + 3}" width="12" height="12" style="fill:{_colour(legend, name)}"/>'
        parts = [*parts, f"<g><title>{escape(name)}</title>{square}{_text(x + 18, y + 14, _short(name))}</g>"]
    height += -(-len(legend) // _LEGEND) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(parts)}</svg>'
    )


def _colour(names: Sequence[str], name: str) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)]


def _label(text: str, y: float) -> str:
    return _text(_LABEL - 8, y + 14, _short(text), "end")


def _short(text: str) -> str:
    return text if len(text) <= 44 else "…" + text[-43:]


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(at: float, length: float, y: float, colour: str = "") -> str:
    style = f' style="fill:{colour}"' if colour else ""
    return f'<rect x="{_LABEL + at:.1f}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}"{style}/>'


def _rule(x: float, bottom: float) -> str:
    return f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'


def _ticks(top: float) -> list[float]:
    """From 0 to about ``top`` in steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    raw = top / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    return [k * step for k in range(int(top / step + 1e-9) + 1)]


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
