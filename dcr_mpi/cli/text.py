"""Results as text for people: a few lines, aligned, with units."""

from __future__ import annotations

import json
from typing import Any

from ..units import bytes_text as size
from ..units import seconds_text as seconds
from .census_text import census
from .plan_text import bench, paper, plan
from .report_text import report


def render(result: dict[str, Any]) -> str:
    """One result of any command as text."""
    if "kind" in result:
        return json.dumps(result, indent=2)
    act = result.get("act", "")
    if act == "status":
        return _status(result)
    if act == "keygen":
        return result["public"] or f"{result['file']}: a key that all sides share"
    if act == "census":
        return census(result)
    if act == "doctor":
        return doctor(result)
    if act == "report":
        return report(result)
    if act in ("plan", "paper", "bench"):
        return {"plan": plan, "paper": paper, "bench": bench}[act](result)
    if act == "run":
        return "\n".join(
            [f"version {result['version']} is everywhere; state {result['state'][:16]}"]
            + [f"  {name:<20} {seconds(sum(r.get('seconds', {}).values()))}" for name, r in result["acts"].items()]
        )
    lines = [f"{act}: " + ", ".join(_facts(result))]
    if "damage" in result:
        lines += [f"  {d['shard']}: {damaged(d)}: {d['words']} differ" for d in result["damage"]]
        lines += [f"  shard {s} made anew" for s in result["shards"]]
    if "floor" in result:
        return "\n".join([_collected(result), *(f"  {key}" for key in result["keys"] if result["dry"])])
    if "served" in result:
        lines.append(_served(result["served"]))
    if result.get("seconds"):
        lines.append("  seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in result["seconds"].items()))
    return "\n".join(lines)


def _served(served: dict[str, Any]) -> str:
    """What became of the parts that the trainer's ranks served."""
    late = f"; not prepared yet: {', '.join(served['missing'])}" if served["missing"] else ""
    return f"  served: {size(served['sent'])} to sites, {'a' if served['stored'] else 'no'} copy in the store{late}"


def doctor(result: dict[str, Any]) -> str:
    """A line for every finding; what is expected and to be done under those that are not good."""
    lines = []
    wide = max(len(f["check"]) for f in result["findings"])
    for f in result["findings"]:
        where = f" [{f['where']}]" if f["where"] else ""
        lines.append(f"{f['level']:<5} {f['check']:<{wide}}  {f['found']}{where}")
        if f["level"] != "ok":
            code = f" (exit code {f['code']})" if f["code"] else ""
            lines += [f"{'':<{wide + 8}}expected {f['expected']}{code}", f"{'':<{wide + 8}}next: {f['remedy']}"]
    count = {level: sum(f["level"] == level for f in result["findings"]) for level in ("ok", "warn", "fail")}
    told = ", ".join(f"{n} {level}" for level, n in count.items())
    return "\n".join([*lines, f"doctor: {told}; {result['ranks']} rank{'s' * (result['ranks'] > 1)}"])


def _facts(result: dict[str, Any]) -> list[str]:
    facts = []
    for key in ("subject", "site", "directory", "version", "base", "step", "reason", "replayed"):
        if result.get(key) not in (None, ""):
            facts.append(f"{key} {result[key]}")
    if result.get("state"):
        facts.append(f"state {result['state'][:16]}")
    detail, amount = result.get("detail", {}), result.get("bytes", {})
    if detail.get("elements"):
        changed, payload = detail["changed"], amount["payload"]
        facts.append(f"{changed} of {detail['elements']} words changed ({changed / detail['elements']:.2%})")
        facts.append(f"payload {size(payload)} for {size(amount['dense'])}")
        if changed:
            facts.append(f"{8 * payload / changed:.2f} bits per change")
    return facts


def damaged(d: dict[str, Any]) -> str:
    """Where a range of damage is."""
    box = d["box"]
    where = f"box {tuple(box['start'])}..{tuple(box['stop'])}, words {d['start']}..{d['stop']}"
    return f"tensor {d['tensor']!r}, {where}"


def _collected(result: dict[str, Any]) -> str:
    kept = ", ".join(f"{s} at {'an anchor' if v is None else v}" for s, v in result["sites"].items()) or "none"
    lines = [
        f"{result['act']}: {result['objects']} objects, {size(result['bytes'])}, {result['uploads']} open uploads",
        f"  kept: versions after {result['floor']}, anchors {result['anchors']}",
        f"  sites with a lease, or a replica made or repaired lately: {kept}",
    ]
    if result["expired"]:
        lines.append(f"  leases that ran out: {', '.join(result['expired'])}")
    if result["strange"]:
        lines.append(f"  {result['strange']} objects here are not dcr-mpi's: left alone")
    return "\n".join(lines)


def _status(result: dict[str, Any]) -> str:
    lines = [
        f"policy {result['policy']}: {result['tensors']} tensors, store {result['store']}",
        f"committed version {result['committed']}, state {result['state'][:16]}; newest opened {result['newest']}",
    ]
    for row in result["versions"]:
        line = f"  version {row['version']:>6}  {row['state']}"
        if row.get("payload_bytes"):
            line += f"; {row['changed'] / max(row['elements'], 1):.2%} changed"
            line += f", {size(row['payload_bytes'])} in {row['parts']} parts"
            line += "; " + ", ".join(f"{site} {what}" for site, what in row["sites"].items())
        lines.append(line)
    for site, row in result["replicas"].items():
        what = row.get("error") or ("no replica here" if row["version"] is None else f"version {row['version']}")
        if row.get("applying") is not None:
            what += f", applying {row['applying']} was interrupted: run dcr apply"
        lines.append(f"  replica of {site}: {what} ({row.get('directory', '')})")
    return "\n".join(lines)
