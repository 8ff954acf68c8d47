"""The plots of a report, each an SVG that stands alone, and all of them as one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..units import bytes_text as size
from ..units import seconds_text as seconds
from .page import page as whole
from .page import section
from .report_text import missing, slowest, summary, times
from .svg import Stack, lines, stacked

_KINDS = 12  # lines of one plot


def figures(result: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """Title, note and SVG of every plot, by the stem of its file."""
    made = {
        "payload": _payload(result["versions"]),
        "changes": _changes(result["versions"]),
        "stages": _stages(result),
        "balance": _balance(result["stages"]),
    }
    return {stem: (title, note, plot) for stem, (title, note, plot) in made.items()}


def page(result: dict[str, Any], plots: dict[str, tuple[str, str, str]]) -> str:
    """HTML 5; nothing is loaded from elsewhere."""
    head = f"policy {result['policy']}, {result['store']}"
    told = [summary(result), *(f"Missing: {line}" for line in missing(result))]
    return whole(f"dcr report: {head}", "Refits", head, told, [section(*plot) for plot in plots.values()])


def _payload(rows: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    title = "Payload against the full checkpoint"
    series = [(name, [r.get(key) for r in rows])
              for name, key in (("full checkpoint", "dense_bytes"), ("payload", "payload_bytes"))]  # fmt: skip
    return (
        title,
        "Bytes of each version; headers and digests included. Logarithmic.",
        lines(title, _places(rows), series, size, base=8),
    )


def _changes(rows: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    title = "Changed words by kind of tensor"
    rates: dict[str, list[float | None]] = {}
    words: dict[str, int] = {}
    for at, row in enumerate(rows):
        for kind in row["kinds"] or ():
            name = f"{kind['kind']} ({kind['dtype']})"
            words[name] = max(words.get(name, 0), kind["words"])
            share = kind["changed"] / kind["words"] if kind["words"] else None
            rates.setdefault(name, [None] * len(rows))[at] = share
    shown = sorted(rates, key=lambda name: -words[name])[:_KINDS]
    every = [r["changed"] / r["elements"] if r.get("elements") else None for r in rows]
    note = "Names without their numbers. Logarithmic; a kind has no point where nothing of it changed."
    if len(shown) < len(rates):
        note += f" The {len(shown)} largest of {len(rates)} kinds; report.json has all."
    series = [("all tensors", every), *((name, rates[name]) for name in shown)]
    return title, note, lines(title, _places(rows), series, lambda v: f"{100 * v:.3g}%")


def _stages(result: dict[str, Any]) -> tuple[str, str, str]:
    title = "Seconds of each version, one stage after the other"
    stacks: list[Stack] = []
    for row in result["versions"]:
        pieces = [
            (f"{stage['act']}: {name}", value)
            for stage in slowest(result, row["version"]).values()
            for name, value in _pieces(stage)
        ]
        total = seconds(sum(v for _, v in pieces)) if pieces else "unknown"
        stacks.append((f"version {row['version']}", pieces, total))
    note = (
        "The slowest rank of each act, and of several sites the slowest one. Pauses between the acts are left out; "
        "decoding runs beside the relay, and counts for itself."
    )
    return title, note, stacked(title, stacks, times)


def _pieces(stage: dict[str, Any]) -> list[tuple[str, float]]:
    """Stages, and what of the wall time is in none of them."""
    rest = stage["wall"] - sum(stage["seconds"].values())
    return [*stage["seconds"].items(), *([("rest", rest)] if rest > 0.005 * stage["wall"] else [])]


def _balance(stages: Sequence[dict[str, Any]]) -> tuple[str, str, str]:
    title = "Seconds of each rank, newest version with a log"
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for stage in stages:
        if "by_rank" in stage:
            newest[stage["act"], stage["subject"]] = stage
    stacks: list[Stack] = []
    for (act, subject), stage in newest.items():
        for rank in stage["by_rank"]:
            label = f"{act}{'' if subject == 'trainer' else f' {subject}'} {stage['version']}, rank {rank['rank']}"
            stacks.append((label, list(rank["seconds"].items()), seconds(sum(rank["seconds"].values()))))
    note = "Stages by name; a rank that waits for others in a collective does so inside the stage that it is in."
    return title, note, stacked(title, stacks, times)


def _places(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [str(r["version"]) for r in rows]
