"""What a run of versions came to: payload, changes by kind of tensor, seconds by stage, work by rank.

Sizes are from the store's manifests; seconds, ranks and kinds from the logs that are at hand, else from receipts.
What is missing is named, and the rest is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..catalog import Catalog
from ..errors import CorruptInput, DcrError, from_os_error
from ..jsonable import loads, to_plain
from ..model import Decision, Receipt
from .logs import Run, job_of, read_runs

_ACTS = {"encode": "encoded", "refit": "prepared", "commit": "", "apply": "applied"}  # and the act of its receipt
_RANKS_APART_S = 60.0  # that ranks of one job may begin one after the other
_APPLYING = {"check", "write", "wait", "verify"}  # stages of apply that refit has none of
LONGEST = 50  # versions, where none are asked for


@dataclass(frozen=True)
class ReportJob:
    """``first`` to ``last`` (None: the newest ones); logs and receipt files besides those in the store."""

    first: int | None = None
    last: int | None = None
    sites: tuple[str, ...] = ()
    events: tuple[Path, ...] = ()
    receipts: tuple[Path, ...] = ()


def report(catalog: Catalog, job: ReportJob) -> dict[str, Any]:
    """Gather; asks the store, and writes nothing.

    Returns
    -------
    dict
        ``versions``: a row of sizes for each; ``stages``: one for each act on each, with ``seconds`` by stage of its
        slowest rank and, from logs, ``by_rank``; ``missing``: what could not be found, in words.

    Raises
    ------
    NotReady
        No such policy, or no such directory of logs.
    """
    policy, policy_sha = catalog.policy()
    newest = catalog.last_opened()
    last = newest if job.last is None else job.last
    first = max(1, last - LONGEST + 1) if job.first is None else job.first
    missing = [f"versions {max(first, newest + 1)} to {last}: not opened yet"] if last > newest else []
    runs, strange = read_runs(job.events)
    if not job.events:
        missing.append("logs: events.dir is not configured and no --events given: no ranks, no seconds of every act")
    if strange:
        missing.append(f"logs: {strange} lines that cannot be read")
    receipts = _receipts(job.receipts, policy_sha, missing)
    out: dict[str, Any] = {"act": "report", "policy": policy.policy, "store": catalog.store.url}
    rows, stages = [], []
    for version in range(first, min(last, newest) + 1):
        decision = catalog.decision(version)
        row = _version(catalog, version, decision, missing)
        made = max((r.began for r in runs if r.act == "encode" and r.version == version), default=_RANKS_APART_S)
        since = made - _RANKS_APART_S
        sites = sorted({*job.sites, *(decision.prepared if decision is not None else ())})
        found = [
            stage
            for act in _ACTS
            for subject in (sites if act in ("refit", "apply") else ["trainer"])
            if (stage := _stage(catalog, runs, receipts, act, subject, version, since)) is not None
        ]
        row["kinds"] = next((s.pop("kinds") for s in found if "kinds" in s), None)
        if row["kinds"] is None and row.get("parts"):
            missing.append(f"version {version}: changes by kind: neither the log of its encode nor its receipt is here")
        rows.append(row)
        stages += found
    return {**out, "versions": rows, "stages": stages, "missing": missing}


def _version(catalog: Catalog, version: int, decision: Decision | None, missing: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"version": version}
    if decision is None:
        row["state"] = "undecided"
    else:
        row["state"] = "committed" if decision.commit else "aborted"
    found = catalog.manifest(version)
    if found is None:
        why = "collected" if decision is not None and decision.commit else "never sealed"
        missing.append(f"version {version}: sizes: {why}, so there is no manifest")
        return row
    m = found[0]
    return row | {
        "base": m.base, "parts": len(m.parts), "elements": m.elements, "changed": m.changed,
        "dense_bytes": m.dense_bytes, "payload_bytes": m.payload_bytes, "step": m.step,
    }  # fmt: skip


def _stage(
    catalog: Catalog,
    runs: Sequence[Run],
    receipts: Sequence[Receipt],
    act: str,
    subject: str,
    version: int,
    since: float,
) -> dict[str, Any] | None:
    """Seconds of one act on a version: from the logs of all ranks, else from rank 0's receipt."""
    row: dict[str, Any] = {"version": version, "act": act, "subject": subject}
    if job := _job(runs, act, subject, version, since):
        slowest = max(job, key=lambda r: r.wall)
        kinds = next((r.facts["kinds"] for r in job if "kinds" in r.facts), None)
        ranks = [{**to_plain(r), "facts": {k: v for k, v in r.facts.items() if k != "kinds"}} for r in job]
        row |= {"source": "log", "began": min(r.began for r in job), "wall": slowest.wall, "seconds": slowest.seconds}
        row |= {"size": slowest.size, "by_rank": ranks}
        return row | ({"kinds": kinds} if kinds else {})
    wanted = (_ACTS[act], subject, version)
    receipt = next((r for r in receipts if (r.act, r.subject, r.version) == wanted), None)
    if receipt is None and act in ("refit", "apply"):
        found = catalog.receipt(version, _ACTS[act], subject)
        receipt = found[0] if found else None
    if receipt is None:
        return None
    seconds = receipt.seconds
    if act == "apply" and "relay" in seconds:  # of a catch-up, which prepared in the same run
        seconds = {name: s for name, s in seconds.items() if name in _APPLYING}
    row |= {"source": "receipt", "wall": sum(seconds.values()), "seconds": seconds}
    kinds = receipt.detail.get("kinds")
    return row | {"size": receipt.ranks} | ({"kinds": kinds} if kinds else {})


def _job(runs: Sequence[Run], act: str, subject: str, version: int, since: float) -> list[Run]:
    """The runs of an act, by rank. A catch-up is one run that prepares and applies: it is taken apart."""
    job = job_of(runs, act, subject, version, since)
    if act == "refit":
        return [_share(run, applying=False) if "write" in run.seconds else run for run in job]
    if act == "apply" and not job:
        caught = job_of(runs, "refit", subject, version, since)
        return [_share(run, applying=True) for run in caught if any("write" in r.seconds for r in caught)]
    return job


def _share(run: Run, applying: bool) -> Run:
    seconds = {name: s for name, s in run.seconds.items() if (name in _APPLYING) == applying}
    wall = sum(seconds.values()) if applying else run.wall - sum(run.seconds[n] for n in _APPLYING & set(run.seconds))
    return replace(run, wall=wall, seconds=seconds)


def _receipts(paths: Iterable[Path], policy_sha: str, missing: list[str]) -> list[Receipt]:
    """Receipt files of this policy, alone or in directories; other JSON is passed over."""
    out = []
    try:
        files = [f for p in paths for f in (sorted(p.rglob("*.json")) if p.is_dir() else [p])]
        for file in files:
            raw = file.read_bytes()
            try:
                if {"manifest_sha256", "ranks"} <= set(json.loads(raw)):
                    out.append(loads(Receipt, raw, f"receipt {file}"))
            except (ValueError, TypeError, CorruptInput) as error:
                what = error.found if isinstance(error, DcrError) else error
                missing.append(f"receipt {file}: cannot be read ({what})")
    except OSError as error:
        raise from_os_error(error, f"reading receipts in {error.filename}") from error
    return [r for r in out if r.policy_sha256 == policy_sha]
