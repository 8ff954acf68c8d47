"""A report as text: a line that answers, a table of versions, and what is missing."""

from __future__ import annotations

from typing import Any

from ..units import bytes_text as size
from ..units import seconds_text
from .census_text import table

_ACTS = ("encode", "refit", "commit", "apply")


def report(result: dict[str, Any]) -> str:
    """The tables of :func:`dcr_mpi.acts.report.report`."""
    rows = []
    for row in result["versions"]:
        walls = {act: stage["wall"] for act, stage in slowest(result, row["version"]).items()}
        if row.get("dense_bytes"):
            changed, payload = row["changed"], row["payload_bytes"]
            share = f"{changed / row['elements']:.2%}" if row["elements"] else "-"
            told = (share, size(payload), f"{payload / row['dense_bytes']:.2%}",
                    f"{8 * payload / changed:.2f}" if changed else "-")  # fmt: skip
        else:
            told = ("-", "-", "-", "-")
        rows.append((str(row["version"]), row["state"], *told, *(_wall(walls.get(act)) for act in _ACTS)))
    lines = [summary(result), ""]
    head = ("version", "state", "changed", "payload", "of full", "bits/change", *(f"{act} s" for act in _ACTS))
    lines += table("versions; of several ranks and sites the slowest", head, rows)
    lines += [f"missing: {line}" for line in missing(result)]
    return "\n".join([*lines, f"written: {', '.join(result['files'])}"])


def summary(result: dict[str, Any]) -> str:
    """What was sent, in one line."""
    rows = [r for r in result["versions"] if r.get("dense_bytes")]
    if not rows:
        return "report: no sealed version among these"
    payload, dense = sum(r["payload_bytes"] for r in rows), sum(r["dense_bytes"] for r in rows)
    return f"report: {len(rows)} versions, {size(payload)} sent instead of {size(dense)} ({payload / dense:.2%})"


def slowest(result: dict[str, Any], version: int) -> dict[str, dict[str, Any]]:
    """The acts on a version in their order; of the sites the one that took longest."""
    found: dict[str, dict[str, Any]] = {}
    for stage in result["stages"]:
        if stage["version"] == version and stage["wall"] >= found.get(stage["act"], {"wall": 0.0})["wall"]:
            found[stage["act"]] = stage
    return found


def missing(result: dict[str, Any], shown: int = 10) -> list[str]:
    """What was not found; many lines are cut short."""
    lines = result["missing"]
    return [*lines[:shown], *([f"{len(lines) - shown} more; report.json has all"] if len(lines) > shown else [])]


def times(value: float) -> str:
    """A number of seconds on an axis or in a tooltip."""
    return f"{value:.3g} s" if value < 120 else seconds_text(value)


def _wall(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
