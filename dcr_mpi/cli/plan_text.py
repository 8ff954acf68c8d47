"""A plan, the paper's cases and a calibration as text."""

from __future__ import annotations

from typing import Any

from ..units import bytes_text as size
from ..units import seconds_text as seconds
from .census_text import table

_NOT_GIVEN = "not given"


def plan(result: dict[str, Any]) -> str:
    """One plan: the answer, the stages, the choice."""
    c, (trainer, site) = result["choice"], result["ranks"]
    what = f"{size(result['dense_bytes'])} at {result['changed_fraction']:.3g} changed ({result['law']})"
    faster = result["speedup"]
    times = f"{faster:.1f} times faster than" if faster >= 1 else f"{1 / faster:.1f} times as long as"
    whole = f"{times} the whole checkpoint's bytes alone in {seconds(result['full_s'])}"
    most = max(result["stages"], key=lambda stage: stage["adds_s"])["name"]
    sent = f"{size(result['payload_bytes'])}, {result['bits_per_change']:.2f} bits per change"
    share = (
        f"transport is {result['transport_share']:.0%} of it, {most} adds most; parts wait for {result['bottleneck']}"
    )
    lines = [
        f"{seconds(result['total_s'])} for {what}, {whole}",
        f"pause {seconds(result['pause_s'])}; payload {sent}; {share}",
    ]
    if result["pause_s"] > result["total_s"] / 2:
        lines.append(
            "most of it is the pause: more --site-ranks and --site-nodes write in less, so does a faster --disk; "
            "a replica in a file system in memory is as one at --disk 100GB/s"
        )
    lines.append("")
    lines += table(
        "stages: alone, and what each adds to the whole",
        ("stage", "alone", "adds", "bytes"),
        ((s["name"], seconds(s["busy_s"]), seconds(s["adds_s"]), size(s["bytes"]) if s["bytes"] else "-")
         for s in result["stages"]),
    )  # fmt: skip
    lines += [
        f"choice: codec.positions {c['positions']}, codec.part_mib {c['part_mib']:g} ({result['parts']} parts), "
        f"relay.degree {c['degree']}",
        f"ranks: {trainer} at the trainer, {site} at each site (--trainer-ranks, --site-ranks)",
        f"speeds: {result['calibration']}",
    ]
    return "\n".join(lines)


def paper(result: dict[str, Any]) -> str:
    """The paper's cases; its figure first, ours after it."""
    rows = [(r, r["paper"], r["ours"]) for r in result["rows"]]
    lines = table(
        "the NeMo-DCR paper's cases, and our projection on the same link: how long",
        ("case", "full: paper", "ours", "refit: paper", "ours", "speed-up: paper", "ours", "transport: paper", "ours"),
        (
            (
                _case(r),
                _NOT_GIVEN if p["full_s"] is None else f"{p['full_s']:.0f} s",
                f"{o['full_s']:.0f} s",
                _range(p["refit_s"], "g", " s"),
                f"{o['refit_s']:.1f} s",
                _range(p["speedup"], "g", "x"),
                f"{o['speedup']:.0f}x",
                _range(p["transport_share"], ".0%", ""),
                f"{o['transport_share']:.0%}",
            )
            for r, p, o in rows
        ),
    )
    lines += table(
        "the same: what crosses the link, and ours besides",
        ("case", "bits: paper", "ours", "on the link: paper *", "ours", "pause", "held up by", "part", "ranks"),
        (
            (
                _case(r),
                f"{p['bits_per_change']:g}",
                f"{o['bits_per_change']:.2f}",
                f"{p['payload_s']:.1f} s",
                f"{o['payload_s']:.1f} s",
                f"{o['pause_s']:.2f} s",
                o["bottleneck"],
                f"{o['part_mib']:g} MiB",
                str(r["ranks"]),
            )
            for r, p, o in rows
        ),
    )
    rates = {r["model"]: f"{r['link_bytes_s'] / 1e6:.0f} MB/s" for r, _, _ in rows}
    links = ", ".join(f"{model} {rate}" for model, rate in rates.items())
    lines += [
        "* derived: its bits per change at the link's rate.",
        "Paper: its speed-ups are over all its cases, 120B over both rates and transports, transport's share over its",
        "stress cases. What it does not give, its ranks and link rates among it, is not guessed.",
        f"Links follow from its full transfers: {links}",
        "(1T with as many bytes a parameter as 120B).",
        "Ours: one rank per 4 GB of checkpoint at each side, one site with one replica in a file system in memory,",
        "jobs that stay, 30 ms one way, a look every 10 to 100 ms. Its relay tree is our direct transport.",
        f"speeds: {result['calibration']}",
    ]
    return "\n".join(lines)


def _case(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['changed']:.0%}, {'object store' if row['transport'] == 'store' else 'relay tree'}"


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
    rows += [
        ("disk, fsync of what was written", f"{s['disk_rate'] / 1e9:.2f} GB/s"),
        ("fsync of little", f"{1e3 * s['sync_s']:.1f} ms"),
    ]
    if s["put_rate"] is not None:
        rows.append(("store, put", f"{1e3 * s['put_s']:.1f} ms, {s['put_rate'] / 1e6:.0f} MB/s"))
        rows.append(("store, get", f"{1e3 * s['get_s']:.1f} ms, {s['get_rate'] / 1e6:.0f} MB/s"))
    for act in ("encode", "refit", "apply"):
        fixed = s[f"{act}_act"]
        rows.append(
            (f"fixed cost of {act}", f"{1e3 * fixed['once_s']:.0f} ms and {1e6 * fixed['tile_s']:.1f} us a tile")
        )
    rows.append(("coding, besides", f"{1e6 * s['encode_tile_s']:.0f} and {1e6 * s['prepare_tile_s']:.0f} us a tile"))
    rows.append(("start of a process", f"{s['start_s']:.2f} s"))
    rows.append(("share of a core", f"{s['core_share']:.0%}"))
    lines = table(f"this machine, one core, {near}", ("what", "measured"), rows)
    if s["put_rate"] is None:
        lines.append("no store was measured (-c FILE): the calibration has the defaults for it")
    lines.append(f"{result['seconds']['bench']:.1f} s" + (f"; {result['out']} written" if result["out"] else ""))
    return "\n".join(lines)


def _speed(cost: dict[str, float], per: float) -> str:
    return f"{1e-9 / (cost['byte_s'] + per * cost['change_s']):.3f} GB/s"
