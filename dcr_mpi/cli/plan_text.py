"""A plan, the paper's cases and a calibration as text."""

from __future__ import annotations

from typing import Any

from ..units import bytes_text as size
from ..units import seconds_text as seconds
from .census_text import table

_NOT_GIVEN = "not given"


def plan(result: dict[str, Any]) -> str:
    """One plan: the answer, the stages, the choice."""
    c = result["choice"]
    lines = [
        f"{seconds(result['total_s'])} for {size(result['dense_bytes'])} at {result['changed_fraction']:.3g} changed "
        f"({result['law']}), {result['speedup']:.1f} times faster than the whole checkpoint in {seconds(result['full_s'])}",
        f"pause {seconds(result['pause_s'])}; payload {size(result['payload_bytes'])}, {result['bits_per_change']:.2f} bits "
        f"per change; transport is {result['transport_share']:.0%} of it; what holds it up: {result['bottleneck']}",
        "",
    ]
    lines += table(
        "stages: alone, and what each adds to the whole",
        ("stage", "alone", "adds", "bytes"),
        ((s["name"], seconds(s["busy_s"]), seconds(s["adds_s"]), size(s["bytes"]) if s["bytes"] else "-")
         for s in result["stages"]),
    )  # fmt: skip
    lines += [
        f"choice: codec.positions {c['positions']}, codec.part_mib {c['part_mib']:g} ({result['parts']} parts), "
        f"relay.degree {c['degree']}",
        f"speeds: {result['calibration']}",
    ]
    return "\n".join(lines)


def paper(result: dict[str, Any]) -> str:
    """The paper's cases; its figure first, ours after it."""
    rows = result["rows"]
    lines = table(
        "the NeMo-DCR paper's cases, and our projection on the same link",
        ("model", "changed", "transport", "ranks", "full: paper", "ours", "refit: paper", "ours", "payload s: paper", "ours",
         "share: paper", "ours", "speed-up: paper", "ours", "bits: paper", "ours"),
        (
            (
                r["model"], f"{r['changed']:.0%}", "object store" if r["transport"] == "store" else "relay tree", str(r["ranks"]),
                _NOT_GIVEN if p["full_s"] is None else f"{p['full_s']:.0f} s", f"{o['full_s']:.0f} s",
                _range(p["refit_s"], "g", " s"), f"{o['refit_s']:.1f} s", f"{p['payload_s']:.1f} *", f"{o['payload_s']:.1f}",
                _range(p["transport_share"], ".0%", ""), f"{o['transport_share']:.0%}",
                _range(p["speedup"], "g", "x"), f"{o['speedup']:.0f}x", f"{p['bits_per_change']:g}", f"{o['bits_per_change']:.2f}",
            )
            for r in rows for p, o in [(r["paper"], r["ours"])]
        ),
    )  # fmt: skip
    links = {r["model"]: r["link_bytes_s"] for r in rows}
    lines += [
        "The paper's ranges are over all its cases (speed-up), over both rates and transports (120B), or over its stress",
        "cases (share). Figures that it does not give are not guessed; its ranks are among them.",
        "* derived: its bits per change on the link's rate.",
        "Links follow from its full transfers: " + ", ".join(f"{m} {v / 1e6:.0f} MB/s" for m, v in links.items())
        + "; 1T with as many bytes a parameter as 120B.",
        "Ours: one rank per 4 GB of checkpoint at each side, one site with one replica in a file system in memory, jobs that",
        "stay, 30 ms one way, a look every 10 to 100 ms; relay tree is our direct transport, object store the store.",
        f"speeds: {result['calibration']}",
    ]  # fmt: skip
    return "\n".join(lines)


def _range(given: tuple[float, float] | None, form: str, unit: str) -> str:
    if given is None:
        return _NOT_GIVEN
    low, high = given
    return f"{low:{form}}{unit}" if low == high else f"{low:{form}} to {high:{form}}{unit}"


def bench(result: dict[str, Any]) -> str:
    """A calibration."""
    s = result["speeds"]
    near = f"at {s['fraction']:.3g} changed ({s['law']})"
    per = s["fraction"] / 2  # changes per dense byte of bf16
    rows = [("memcpy", f"{s['memcpy'] / 1e9:.2f} GB/s")]
    for act in ("encode", "prepare"):
        for how, cost in sorted(s[act].items()):
            rows.append((f"{act}, {how}", _speed(cost, per)))
    rows.append(("apply", _speed(s["apply"], per)))
    rows += [("disk, write and fsync", f"{s['disk_rate'] / 1e9:.2f} GB/s"), ("fsync of little", f"{1e3 * s['sync_s']:.1f} ms")]
    if s["put_rate"] is not None:
        rows.append(("store, put", f"{1e3 * s['put_s']:.1f} ms, {s['put_rate'] / 1e6:.0f} MB/s"))
        rows.append(("store, get", f"{1e3 * s['get_s']:.1f} ms, {s['get_rate'] / 1e6:.0f} MB/s"))
    for act in ("encode", "refit", "apply"):
        fixed = s[f"{act}_act"]
        rows.append((f"fixed cost of {act}", f"{1e3 * fixed['once_s']:.0f} ms and {1e6 * fixed['tile_s']:.1f} us a tile"))
    rows.append(("start of a process", f"{s['start_s']:.2f} s"))
    lines = table(f"this machine, one core, {near}", ("what", "measured"), rows)
    if s["put_rate"] is None:
        lines.append("no store was measured (-c FILE): the calibration has the defaults for it")
    lines.append(f"{result['seconds']['bench']:.1f} s" + (f"; {result['out']} written" if result["out"] else ""))
    return "\n".join(lines)


def _speed(cost: dict[str, float], per: float) -> str:
    return f"{1e-9 / (cost['byte_s'] + per * cost['change_s']):.3f} GB/s"
