"""Subcommands: configuration and arguments in, one act, a plain result out. No printing here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from ..acts.apply import apply
from ..acts.catch_up import catch_up
from ..acts.commit import abort, decide
from ..acts.create import CreateJob, create_replica
from ..acts.encode import encode
from ..acts.init import InitJob, init_policy, register_site
from ..acts.offering import serve
from ..acts.ports import Ports
from ..acts.prepare import prepare
from ..acts.prepare_plan import PrepareJob, next_version
from ..acts.replay import finish_apply, replay
from ..acts.replica import Replica
from ..config import Config
from ..errors import Conflict, UsageError
from ..jsonable import dumps, to_plain
from .follow import cmd_follow
from .jobs import (
    apply_job,
    codec_settings,
    encode_job,
    log_of_its_own,
    poll_s,
    prepare_job,
    read_layout,
    serving,
    site_of,
)
from .publish import cmd_publish
from .report import cmd_report
from .status import status
from .upkeep import cmd_anchor, cmd_gc, cmd_repair, cmd_verify

Result = dict[str, Any]


def cmd_init(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    t = config.trainer
    _check_init(args)
    if args.checkpoint is not None:
        job = InitJob(
            args.checkpoint,
            t.state,
            read_layout(t.layout),
            codec_settings(config),
            not args.no_anchor,
            t.step_attribute,
            t.dtypes,
        )
        return to_plain(init_policy(ports, job))
    site = site_of(config, args.site)
    ports.once("registration", lambda: dumps(register_site(ports, args.site, read_layout(site.layout))))
    if args.register_only:
        return {"act": "registered", "site": args.site}
    create = CreateJob(args.site, site.replica, args.source, None, config.relay.degree, config.relay.window)
    record, created = create_replica(ports, create)
    return {
        "act": "created" if created else "there already, its bits not looked at (dcr verify does)",
        "site": args.site,
        "version": record.version,
        "state": record.state,
        "seconds": ports.events.seconds(),
    }


def _check_init(args: argparse.Namespace) -> None:
    trainer, site = {"--no-anchor": args.no_anchor}, {"--from": args.source, "--register-only": args.register_only}
    side, strange = ("--site", trainer) if args.checkpoint is None else ("--checkpoint", site)
    for option, value in strange.items():
        if value:
            raise UsageError(
                "init",
                found=f"{option} with {side}",
                expected=f"{option} with {'--checkpoint' if side == '--site' else '--site'} only",
                remedy="leave it out",
            )


def cmd_encode(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    with serving(ports, config) as own:
        receipt = encode(own, encode_job(config, args.new, args.base, args.number))
        served = serve(own, receipt.version, config.trainer.sites, config.direct.serve_s, poll_s(config))
    return to_plain(receipt) | ({"served": to_plain(served)} if served is not None else {})


def cmd_refit(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    job = prepare_job(config, args.site, args.number, args.wait)
    if args.catch_up:
        if args.number is not None:
            raise UsageError(
                "refit", found="--catch-up with --version", expected="one of them", remedy="leave --version out"
            )
        return _catch_up(ports, config, job)
    receipt = prepare(ports, job)
    return to_plain(receipt) if receipt is not None else _up_to_date(ports, job)


def _up_to_date(ports: Ports, job: PrepareJob) -> Result:
    record = Replica(job.replica, job.site).need()
    return {"act": "up to date", "site": job.site, "version": record.version, "state": record.state}


def _catch_up(ports: Ports, config: Config, job: PrepareJob) -> Result:
    """Take all committed versions, then prepare the one that waits for a decision, if there is one.

    The wait is for the first of them; one that is opened and not sealed yet is none. Where the chain is broken the
    replica comes back by an anchor.
    """
    applying = apply_job(config, job.site, None)
    caught = catch_up(ports, job, applying)
    result = {"act": "caught up", "replayed": list(caught.replayed), "anchored": caught.anchored}
    if (job.wait_s == 0 or caught.replayed) and not _sealed_next(ports, job):
        return {**_up_to_date(ports, job), **result}
    receipt = prepare(ports, job)
    if receipt is None:
        return {**_up_to_date(ports, job), **result}
    if ports.once("decision", lambda: dumps(ports.catalog.decision(receipt.version))) == b"null":
        return {**to_plain(receipt), "replayed": list(caught.replayed)}
    late = replay(ports, dataclasses.replace(job, until=receipt.version), applying)
    return {**_up_to_date(ports, job), **result, "replayed": [*caught.replayed, *late]}


def _sealed_next(ports: Ports, job: PrepareJob) -> bool:
    """Whether the version after the replica's is there to be prepared."""

    def look() -> bytes:
        version = next_version(ports, Replica(job.replica, job.site).need())
        return dumps(version is not None and ports.catalog.manifest(version) is not None)

    return ports.once("next version", look) == b"true"


def cmd_commit(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    if args.abort is not None and args.without:
        raise UsageError(
            "commit", found="--abort with --without", expected="one of them", remedy="an abort waits for nobody"
        )

    def act() -> bytes:
        catalog = ports.catalog
        catalog.policy()  # a mistyped store is no reason to wait
        if args.abort is not None:
            return dumps(abort(catalog, args.number, args.abort))
        wait = config.commit.wait_s if args.wait is None else args.wait
        number = catalog.last_opened() if args.number is None else args.number
        sites = _all_but(ports, number, args.without) if args.without else None
        return dumps(
            decide(
                catalog, number, sites=sites, wait_s=wait, on_timeout=config.commit.on_timeout, poll_s=poll_s(config)
            )
        )

    with ports.events.stage("wait"):
        result = _plain(ports.once("decision", act))
    ports.events.note(version=result["version"])
    if result["commit"] == (args.abort is not None):
        raise Conflict(
            f"version {result['version']}",
            found="a commit" if result["commit"] else f"an abort ({result['reason']})",
            expected="an abort, as asked for" if result["commit"] else "a commit",
            remedy="a decision is final: go on with the next version",
        )
    return {"act": "committed" if result["commit"] else "aborted", **result}


def _all_but(ports: Ports, version: int, without: Sequence[str]) -> list[str]:
    """The sites that a sealed version is cut for, but these."""
    sites = set(ports.catalog.contents.tiling(ports.catalog.sealed(version)[0].tiling).layouts)
    for name in without:
        if name not in sites:
            raise UsageError(
                "--without",
                found=repr(name),
                expected=f"some of {sorted(sites)}",
                remedy=f"leave it out: version {version} is not cut for it, so nobody waits for it",
            )
    return sorted(sites - set(without))


def cmd_apply(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    receipt = apply(ports, apply_job(config, args.site, args.number, args.wait))
    acts = {"apply": "applied", "discard": "aborted, journals dropped", "done": "up to date"}
    return {**to_plain(receipt), "act": acts[receipt.detail["action"]]}


def cmd_status(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    return _plain(ports.once("status", lambda: dumps(status(ports.catalog, config, args.last))))


def cmd_run(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """Encode, refit every site, decide, apply everywhere; each act's own seconds and bytes in the result.

    Run again after an interruption it goes on with the version that it was at, committed or not.
    """
    acts: dict[str, Result] = {}

    def act(name: str, subject: str, do: Callable[[Ports], Result]) -> Result:
        with log_of_its_own(ports, config, name, subject) as own:
            result = do(own)
        acts[name if subject == "trainer" else f"{name} {subject}"] = result
        return result

    ports = dataclasses.replace(ports, inlet=None)  # by the store: one job is never at both ends at the same time
    asked = encode_job(config, args.new, args.base)
    sealed = act("encode", "trainer", lambda own: to_plain(encode(own, asked)))
    number = sealed["version"]
    for site in config.trainer.sites:
        act("refit", site, lambda own, site=site: _refit(own, config, site, number))  # type: ignore[misc]
    decide_args = argparse.Namespace(abort=None, number=number, wait=None, without=[])
    act("commit", "trainer", lambda own: cmd_commit(own, config, decide_args))
    for site in config.trainer.sites:
        job = apply_job(config, site, number)
        act("apply", site, lambda own, job=job: to_plain(apply(own, job)))  # type: ignore[misc]
    return {"act": "run", "version": number, "state": sealed["state"], "acts": acts}


def _refit(ports: Ports, config: Config, site: str, version: int) -> Result:
    """Prepare a version, unless its apply was under way already: then that is finished."""
    job = prepare_job(config, site, version, 0.0)
    done = finish_apply(ports, job, apply_job(config, site, None)) == [version]
    receipt = None if done else prepare(ports, job)
    return _up_to_date(ports, job) if receipt is None else to_plain(receipt)


def _plain(raw: bytes) -> Result:
    return json.loads(raw)


COMMANDS: dict[str, Callable[[Ports, Config, argparse.Namespace], Result]] = {
    "init": cmd_init,
    "encode": cmd_encode,
    "refit": cmd_refit,
    "commit": cmd_commit,
    "apply": cmd_apply,
    "verify": cmd_verify,
    "status": cmd_status,
    "run": cmd_run,
    "anchor": cmd_anchor,
    "gc": cmd_gc,
    "repair": cmd_repair,
    "report": cmd_report,
    "follow": cmd_follow,
    "publish": cmd_publish,
}
