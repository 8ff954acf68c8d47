"""``dcr follow``: a site's job that stays. See :mod:`dcr_mpi.cli.staying`."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ..acts.apply import apply
from ..acts.catch_up import catch_up
from ..acts.chain import following
from ..acts.ports import Ports
from ..acts.prepare import prepare
from ..acts.replica import Replica
from ..config import Config
from ..errors import Overtaken
from ..health import Health
from ..jsonable import dumps
from ..waiting import watch
from .jobs import apply_job, log_of_its_own, poll_s, prepare_job, site_of
from .staying import Due, call_hook, health_of, is_over, look_s, say

Result = dict[str, Any]
_PAUSED = "paused.json"  # the version of a hook --after that is due, should the job end now
_STATES = {
    "wait": "waiting", "resume": "resuming", "prepare": "preparing", "apply": "applying", "catch up": "catching up"
}  # fmt: skip


def cmd_follow(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """At a site: prepare every version as it is encoded, apply it once it is committed."""
    with health_of(ports, config, args.site, args) as health:
        return _follow(ports, config, args, health)


def _follow(ports: Ports, config: Config, args: argparse.Namespace, health: Health) -> Result:
    site = args.site
    replica = Replica(site_of(config, site).replica, site)
    due = Due(ports, args, replica.work / _PAUSED)
    version = json.loads(ports.once("version that is there", lambda: dumps(_begun(config, args, replica))))
    health.tell({"version": version, "applied_total": 0})
    applied, waited = 0, time.monotonic()
    while True:
        health.doing("waiting")
        todo = json.loads(ports.once("what there is to do", lambda: dumps(_look(ports, config, replica, args, due))))
        version, record = todo["version"], todo["at"]
        health.doing(_STATES[todo["do"]])
        if (args.until is not None and record >= args.until and not todo["unfinished"]) or (
            todo["do"] == "wait" and args.idle is not None and is_over(ports, waited, args.idle)
        ):
            return {"act": "followed", "site": site, "version": record, "applied": applied}
        if todo["do"] == "wait":
            continue
        if todo["do"] == "resume":
            due.call(_facts(replica, version))
        elif todo["do"] == "prepare":
            job = prepare_job(config, site, version, args.wait)
            try:
                with log_of_its_own(ports, config, "refit", site) as own:
                    prepare(own, job)
            except Overtaken as error:
                ports.events.emit("overtaken", version=version, reason=str(error))
        else:
            before = time.monotonic()
            due.note(version)
            call_hook(ports, "before", args.before, _facts(replica, version), args.hook_s)
            with log_of_its_own(ports, config, "apply", site) as own:
                if todo["do"] == "apply":
                    apply(own, apply_job(config, site, version))
                else:
                    catch_up(own, prepare_job(config, site, None, 0.0), apply_job(config, site, None))
                    version = json.loads(ports.once("version reached", lambda: dumps(replica.need().version)))
            due.call(_facts(replica, version))
            applied += 1
            health.done({"version": version, "applied_total": applied, "pause_seconds": time.monotonic() - before})
        waited = time.monotonic()


def _begun(config: Config, args: argparse.Namespace, replica: Replica) -> int:
    """The version that is there, told to whoever reads the log."""
    version = replica.need().version
    say(config, f"site {args.site}: version {version}, waiting for what comes")
    if args.after is None and (replica.work / _PAUSED).exists():
        say(config, f"site {args.site}: an earlier job's --after is still due, and this one has none: who was told to "
            "pause by --before may still wait")  # fmt: skip
    return version


def _look(ports: Ports, config: Config, replica: Replica, args: argparse.Namespace, due: Due) -> Result:
    """What a site has to do now: prepare, apply, catch up; or wait, after some seconds without anything, or at once
    where it has come as far as ``--until``."""
    until = args.until

    def look() -> Result | None:
        record, catalog = replica.need(), ports.catalog
        version = following(catalog, record.version)
        at = {"at": record.version, "unfinished": record.applying is not None or due.noted}
        if record.applying is not None or any(n <= record.version for n in replica.journaled()):
            return {"do": "catch up", "version": record.applying or record.version, **at}
        if due.noted:  # a job ended between the hooks, and the replica is whole: whoever waits for the second gets it
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

    found = watch(look, look_s(args.idle), poll_s(config))
    return found or {"do": "wait", "version": None, "at": replica.need().version, "unfinished": False}


def _facts(replica: Replica, version: int) -> dict[str, str]:
    """What hooks around an apply are told."""
    return {"site": replica.site, "version": str(version), "replica": str(replica.directory.resolve())}
