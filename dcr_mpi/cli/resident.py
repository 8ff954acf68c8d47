"""Jobs that stay: ``publish`` at the trainer and ``follow`` at a site take version after version without starting anew.

Rank 0 looks what there is to do, and all ranks do it: the acts are those of the single commands. Any error ends the job
with that error's code, as it ends theirs; started again, it goes on. A version that is aborted while it is followed is
no error here: what comes next is taken.
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import durable
from ..acts.apply import apply
from ..acts.baseline import BaselineRecord, is_sealed
from ..acts.catch_up import catch_up
from ..acts.chain import following
from ..acts.commit import decide
from ..acts.encode import encode
from ..acts.offering import finish
from ..acts.ports import Ports
from ..acts.prepare import prepare
from ..acts.replica import Replica
from ..config import Config
from ..errors import Overtaken, UsageError, printable
from ..health import Health
from ..hooks import run_hook
from ..jsonable import dumps
from ..waiting import watch
from .jobs import apply_job, encode_job, log_of_its_own, poll_s, prepare_job, serving, site_of

Result = dict[str, Any]
_PAUSED, _UNTOLD = "paused.json", "untold.json"  # hooks that are due, should the job end now
_STATES = {
    "wait": "waiting", "resume": "resuming", "prepare": "preparing", "apply": "applying", "catch up": "catching up"
}  # fmt: skip
_LOOK_S = 5.0  # how long rank 0 looks before it tells the others that there is nothing: shorter than anybody's patience


def cmd_follow(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """At a site: prepare every version as it is encoded, apply it once it is committed."""
    with _health(ports, args.site, args) as health:
        return _follow(ports, config, args, health)


def cmd_publish(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """At the trainer: encode every checkpoint that appears, and commit it once all sites have prepared it."""
    with _health(ports, "trainer", args) as health, serving(ports, config) as own:
        return _publish(own, config, args, health)


def _follow(ports: Ports, config: Config, args: argparse.Namespace, health: Health) -> Result:
    site = args.site
    replica = Replica(site_of(config, site).replica, site)
    applied, waited = 0, time.monotonic()
    while True:
        health.doing("waiting")
        todo = json.loads(ports.once("what there is to do", lambda: dumps(_look(ports, config, replica, args.until))))
        version, record = todo["version"], todo["at"]
        health.doing(_STATES[todo["do"]])
        if (args.until is not None and record >= args.until and not todo["unfinished"]) or (
            todo["do"] == "wait" and args.idle is not None and _is_over(ports, waited, args.idle)
        ):
            return {"act": "followed", "site": site, "version": record, "applied": applied}
        if todo["do"] == "wait":
            continue
        if todo["do"] == "resume":
            _hook(ports, "after", args.after, _facts(replica, version), args.hook_s)
            _note(ports, replica, None)
        elif todo["do"] == "prepare":
            job = prepare_job(config, site, version, args.wait)
            try:
                with log_of_its_own(ports, config, "refit", site) as own:
                    prepare(own, job)
            except Overtaken as error:
                ports.events.emit("overtaken", version=version, reason=str(error))
        else:
            before = time.monotonic()
            _note(ports, replica, version)
            _hook(ports, "before", args.before, _facts(replica, version), args.hook_s)
            with log_of_its_own(ports, config, "apply", site) as own:
                if todo["do"] == "apply":
                    apply(own, apply_job(config, site, version))
                else:
                    catch_up(own, prepare_job(config, site, None, 0.0), apply_job(config, site, None))
                    version = json.loads(ports.once("version reached", lambda: dumps(replica.need().version)))
            _hook(ports, "after", args.after, _facts(replica, version), args.hook_s)
            _note(ports, replica, None)
            applied += 1
            health.tell({"version": version, "applied_total": applied, "pause_seconds": time.monotonic() - before})
        waited = time.monotonic()


def _look(ports: Ports, config: Config, replica: Replica, until: int | None) -> Result:
    """What a site has to do now: prepare, apply, catch up; or wait, after some seconds without anything, or at once
    where it has come as far as ``until``."""

    def look() -> Result | None:
        record, catalog = replica.need(), ports.catalog
        version = following(catalog, record.version)
        paused = (replica.work / _PAUSED).exists()
        at = {"at": record.version, "unfinished": record.applying is not None or paused}
        if record.applying is not None or any(n <= record.version for n in replica.journaled()):
            return {"do": "catch up", "version": record.applying or record.version, **at}
        if paused:  # a job ended between the hooks, and the replica is whole: whoever waits for the second gets it
            return {"do": "resume", "version": record.version, **at}
        if until is not None and record.version >= until:
            return {"do": "wait", "version": None, **at}
        if version is None:
            return None
        mine, decision = replica.sealed(version) is not None, catalog.decision(version)
        if decision is not None:
            # An abort came between two looks, and is passed over by the next one.
            return {"do": "apply" if mine else "catch up", "version": version, **at} if decision.commit else None
        # A job may have ended between its own receipt and the store's, and the decision waits for that one.
        told = mine and catalog.receipt(version, "prepared", replica.site) is not None
        return None if told else {"do": "prepare", "version": version, **at}

    found = watch(look, _LOOK_S, poll_s(config))
    return found or {"do": "wait", "version": None, "at": replica.need().version, "unfinished": False}


def _publish(ports: Ports, config: Config, args: argparse.Namespace, health: Health) -> Result:
    published, waited = 0, time.monotonic()
    untold = config.trainer.state / _UNTOLD
    if args.after is not None:
        facts = json.loads(ports.once("hook that is due", lambda: dumps(_due(ports, untold))))
        if facts is not None:
            _tell(ports, args, facts, untold)
    while True:
        health.doing("waiting")
        raw = ports.once("next checkpoint", lambda: dumps(_checkpoint(ports, config, args)))
        new, version = json.loads(raw)
        if new is None:
            done = args.until is not None and version >= args.until
            if done or (args.idle is not None and _is_over(ports, waited, args.idle)):
                return {"act": "published", "version": version, "published": published}
            continue
        health.doing("encoding")
        with log_of_its_own(ports, config, "encode", "trainer") as own:
            sealed = encode(own, encode_job(config, Path(new)))
        version = sealed.version
        health.doing("deciding")
        if args.after is not None and ports.comm.rank == 0:
            durable.replace(untold, dumps({"version": str(version), "checkpoint": new}))

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
        _tell(ports, args, facts, untold)
        published += decision["commit"]
        health.tell({
            "version": version, "published_total": published, "payload_bytes": sealed.bytes["payload"],
            "dense_bytes": sealed.bytes["dense"], "changed_words": sealed.detail["changed"],
        })  # fmt: skip
        waited = time.monotonic()


def _tell(ports: Ports, args: argparse.Namespace, facts: dict[str, str], untold: Path) -> None:
    if args.after is not None:
        _hook(ports, "after", args.after, facts, args.hook_s)
        if ports.comm.rank == 0:
            durable.remove(untold)


def _due(ports: Ports, untold: Path) -> dict[str, str] | None:
    """What ``--after`` is still to be told: of a version that was decided, but the job ended before its hook had."""
    if not untold.exists():
        return None
    facts: dict[str, str] = json.loads(untold.read_bytes())
    decision = ports.catalog.decision(int(facts["version"]))
    return None if decision is None else {**facts, "committed": str(decision.commit).lower()}


def _checkpoint(ports: Ports, config: Config, args: argparse.Namespace) -> tuple[str | None, int]:
    """The directory to publish next: what is sealed and undecided, else one after the baseline's in natural order, with
    all of its shards; None where there is none, or no more is asked for. And the version of the baseline."""
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
        there = sorted({str(Path(p).resolve()) for p in glob.glob(args.pattern) if Path(p).is_dir()}, key=_natural)
        beside = [path for path in there if Path(path).parent == Path(known.directory).parent]
        # Names say which is later, where they are of one run; a baseline from elsewhere is before all of them.
        later = [path for path in there if not beside or _natural(path) > _natural(known.directory)]
        asked = later[:1] if args.every else reversed(later)  # of each, the first is waited for: none is passed over
        return next((p for p in asked if all((Path(p) / name).exists() for name in known.files)), None)

    record.settle(ports.catalog)
    known, pending = record.baseline(), record.pending()
    if args.until is not None and pending is None and known is not None and known.version >= args.until:
        return None, known.version
    found = watch(look, _LOOK_S, poll_s(config))
    known = record.baseline()
    return found, known.version if known is not None else 0


def _natural(path: str) -> list[tuple[int, str]]:
    """Sorts step-10 after step-9."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"([0-9]+)", path)]


def _is_over(ports: Ports, since: float, idle_s: float) -> bool:
    """Whether rank 0, whose clock counts, has waited long enough."""
    return ports.once("idle time", lambda: dumps(time.monotonic() - since >= idle_s)) == b"true"


def _facts(replica: Replica, version: int) -> dict[str, str]:
    """What hooks around an apply are told."""
    return {"site": replica.site, "version": str(version), "replica": str(replica.directory.resolve())}


def _note(ports: Ports, replica: Replica, version: int | None) -> None:
    """Note durably that hooks are between *before* and *after* (None: no more)."""
    if ports.comm.rank == 0:
        if version is None:
            durable.remove(replica.work / _PAUSED)
        else:
            durable.replace(replica.work / _PAUSED, dumps(version))


def _hook(ports: Ports, when: str, hook: str | None, facts: dict[str, str], timeout_s: float) -> None:
    if hook is not None:

        def act() -> bytes:
            if told := run_hook(when, hook, facts, timeout_s):
                print(printable(f"hook --{when}, version {facts['version']}: {told}"), file=sys.stderr, flush=True)
            return b""

        ports.once(f"hook --{when}", act)


@contextmanager
def _health(ports: Ports, subject: str, args: argparse.Namespace) -> Iterator[Health]:
    """What rank 0 tells; the others have nothing to say."""
    told = (None, None) if ports.comm.rank else (args.metrics, args.listen)
    health = Health(subject, *told)
    try:
        if health.port is not None:
            ports.events.emit("listening", port=health.port)
        yield health
    finally:
        health.close()
