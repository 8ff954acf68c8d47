"""``dcr publish``: the trainer's job that stays. See :mod:`dcr_mpi.cli.staying`."""

from __future__ import annotations

import argparse
import glob
import json
import re
import time
from pathlib import Path
from typing import Any

from ..acts.baseline import BaselineRecord, is_sealed
from ..acts.commit import decide
from ..acts.encode import encode
from ..acts.offering import finish
from ..acts.ports import Ports
from ..config import Config
from ..errors import UsageError
from ..health import Health
from ..jsonable import dumps
from ..waiting import watch
from .jobs import encode_job, log_of_its_own, poll_s, serving
from .staying import Due, health_of, is_over, look_s, say

Result = dict[str, Any]
_UNTOLD = "untold.json"  # what a hook --after is to be told, should the job end now


def cmd_publish(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """At the trainer: encode every checkpoint that appears, and commit it once all sites have prepared it."""
    if len(args.pattern) > 1:
        raise UsageError(
            "publish",
            found=f"{len(args.pattern)} patterns, the first {args.pattern[0]}",
            expected="one",
            remedy="quote it, as in 'run/step-*': else the shell puts what is there now in its place",
        )
    with health_of(ports, config, "trainer", args) as health, serving(ports, config) as own:
        return _publish(own, config, args, health)


def _publish(ports: Ports, config: Config, args: argparse.Namespace, health: Health) -> Result:
    baseline = json.loads(ports.once("baseline that is there", lambda: dumps(_begun(config, args))))
    health.tell({"version": baseline, "published_total": 0})
    published, waited, partial = 0, time.monotonic(), set[str]()
    untold = config.trainer.state / _UNTOLD
    due = Due(ports, args, untold)
    facts = json.loads(ports.once("hook that is due", lambda: dumps(_untold(ports, untold) if due.noted else None)))
    if facts is not None:
        due.call(facts)
    while True:
        health.doing("waiting")
        raw = ports.once("next checkpoint", lambda: dumps(_checkpoint(ports, config, args, partial)))
        new, version = json.loads(raw)
        if new is None:
            done = args.until is not None and version >= args.until
            if done or (args.idle is not None and is_over(ports, waited, args.idle)):
                return {"act": "published", "version": version, "published": published}
            continue
        health.doing("encoding")
        with log_of_its_own(ports, config, "encode", "trainer") as own:
            sealed = encode(own, encode_job(config, Path(new)))
        version = sealed.version
        health.doing("deciding")
        due.note({"version": str(version), "checkpoint": new})

        def act(number: int = version) -> bytes:
            c = config.commit
            return dumps(
                decide(
                    ports.catalog, number, wait_s=c.wait_s, on_timeout=c.on_timeout, poll_s=poll_s(config),
                    known=ports.known,
                )
            )  # fmt: skip

        decision = json.loads(ports.once("decision", act))
        if ports.outlet is not None and ports.outlet.version == version:
            finish(ports)
        facts = {"version": str(version), "checkpoint": new, "committed": str(decision["commit"]).lower()}
        due.call(facts)
        published += decision["commit"]
        health.done({
            "version": version, "published_total": published, "payload_bytes": sealed.bytes["payload"],
            "dense_bytes": sealed.bytes["dense"], "changed_words": sealed.detail["changed"],
        })  # fmt: skip
        waited = time.monotonic()


def _untold(ports: Ports, noted: Path) -> dict[str, str] | None:
    """What ``--after`` is still to be told: of a version that was decided, but the job ended before its hook had."""
    facts: dict[str, str] = json.loads(noted.read_bytes())
    decision = ports.catalog.decision(int(facts["version"]))
    return None if decision is None else {**facts, "committed": str(decision.commit).lower()}


def _begun(config: Config, args: argparse.Namespace) -> int:
    """The baseline's version, told to whoever reads the log; 0 where there is none yet."""
    known = BaselineRecord(config.trainer.state).baseline()
    if known is not None:
        say(config, f"baseline: version {known.version}, {known.directory}")
    (pattern,) = args.pattern
    some = len(glob.glob(pattern))
    alone = "" if glob.has_magic(pattern) else "; it is no pattern: quote it, as in 'run/step-*', if more are to come"
    say(config, f"waiting for checkpoints {pattern}: {some} there{alone}")
    return known.version if known is not None else 0


def _checkpoint(ports: Ports, config: Config, args: argparse.Namespace, partial: set[str]) -> tuple[str | None, int]:
    """The directory to publish next: what is sealed and undecided, else one after the baseline's in natural order, with
    all of its shards; None where there is none, or no more is asked for. And the version of the baseline.

    ``partial``: directories that were told to lack shards.
    """
    record = BaselineRecord(config.trainer.state)

    def look() -> str | None:
        record.settle(ports.catalog)
        pending, known = record.pending(), record.baseline()
        if pending is not None and is_sealed(ports.catalog, pending):
            return pending.directory
        if known is None:
            raise UsageError(
                "publish",
                found=f"no record of version 0 in {config.trainer.state}",
                expected="the state directory of dcr init --checkpoint",
                remedy="run dcr init first, or correct trainer.state",
            )
        there = sorted({str(Path(p).resolve()) for p in glob.glob(args.pattern[0]) if Path(p).is_dir()}, key=_natural)
        beside = [path for path in there if Path(path).parent == Path(known.directory).parent]
        # Names say which is later, where they are of one run; a baseline from elsewhere is before all of them.
        later = [path for path in there if not beside or _natural(path) > _natural(known.directory)]
        asked = later[:1] if args.every else reversed(later)  # of each, the first is waited for: none is passed over
        for path in asked:
            missing = [name for name in known.files if not (Path(path) / name).exists()]
            if not missing:
                return path
            if path not in partial:
                say(config, f"{path}: waiting for {len(missing)} of its {len(known.files)} shards, {missing[0]} first")
                partial.add(path)
        return None

    record.settle(ports.catalog)
    known, pending = record.baseline(), record.pending()
    if args.until is not None and pending is None and known is not None and known.version >= args.until:
        return None, known.version
    found = watch(look, look_s(args.idle), poll_s(config))
    known = record.baseline()
    return found, known.version if known is not None else 0


def _natural(path: str) -> list[tuple[int, str]]:
    """Sorts step-10 after step-9."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"([0-9]+)", path)]
