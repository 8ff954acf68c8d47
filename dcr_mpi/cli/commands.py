"""Subcommands: configuration and arguments in, one act, a plain result out. No printing here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..acts.apply import ApplyJob, apply
from ..acts.commit import abort, decide
from ..acts.create import CreateJob, create_replica
from ..acts.encode import EncodeJob, encode
from ..acts.init import InitJob, init_policy, register_site
from ..acts.ports import Ports
from ..acts.prepare import PrepareJob, prepare
from ..acts.publish import CodecSettings
from ..acts.replica import Replica
from ..acts.state import checkpoint_lanes
from ..checkpoint import Checkpoint
from ..config import Config, SiteConfig
from ..digest import state_digest
from ..errors import BaseMismatch, Conflict, NotReady, UsageError, VerifyFailed, from_os_error
from ..jsonable import dumps, loads, to_plain
from ..model import Layout, Policy
from .status import status

Result = dict[str, Any]


def codec_settings(config: Config) -> CodecSettings:
    c = config.codec
    return CodecSettings(
        c.positions,
        c.values,
        c.level if c.entropy == "zstd" else None,
        c.block,
        int(c.bucket_mib * (1 << 20)),
        int(c.part_mib * (1 << 20)),
        c.self_check,
    )


def read_layout(path: Path | None) -> Layout | None:
    """A layout file: the JSON of :class:`dcr_mpi.model.Layout`."""
    if path is None:
        return None
    try:
        return loads(Layout, path.read_bytes(), str(path))
    except OSError as error:
        raise from_os_error(error, f"layout file {path}") from error


def site_of(config: Config, name: str) -> SiteConfig:
    if name not in config.sites:
        raise UsageError(
            "site",
            found=repr(name),
            expected=f"one of {sorted(config.sites)}",
            remedy="add it under sites: in the configuration",
        )
    return config.sites[name]


def cmd_init(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    t = config.trainer
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
    record = create_replica(ports, create)
    return {
        "act": "created",
        "site": args.site,
        "version": record.version,
        "state": record.state,
        "seconds": ports.events.seconds(),
    }


def cmd_encode(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    t = config.trainer
    number = getattr(args, "number", None)
    job = EncodeJob(args.new, args.base, t.state, t.sites, codec_settings(config), t.step_attribute, t.dtypes, number)
    return to_plain(encode(ports, job))


def cmd_refit(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    job = _prepare_job(config, args.site, args.number, args.wait)
    if args.catch_up:
        return _catch_up(ports, config, job)
    receipt = prepare(ports, job)
    return to_plain(receipt) if receipt is not None else _up_to_date(ports, job)


def _prepare_job(config: Config, site: str, number: int | None, wait: float) -> PrepareJob:
    poll = (config.commit.poll_s[0], config.commit.poll_s[1])
    return PrepareJob(site, site_of(config, site).replica, number, wait, poll, config.relay.degree, config.relay.window)


def _up_to_date(ports: Ports, job: PrepareJob) -> Result:
    record = Replica(job.replica, job.site).need()
    return {"act": "up to date", "site": job.site, "version": record.version, "state": record.state}


def _catch_up(ports: Ports, config: Config, job: PrepareJob) -> Result:
    """Prepare and apply one committed version after the other, until none is left; reports what was replayed."""
    replayed: list[int] = []
    if ports.once("record", lambda: dumps(Replica(job.replica, job.site).need().applying)) != b"null":
        replayed.append(apply(ports, ApplyJob(job.site, job.replica)).version)
    while True:
        receipt = prepare(ports, dataclasses.replace(job, version=None))
        if receipt is None:
            return {**_up_to_date(ports, job), "act": "caught up", "replayed": replayed}
        decision = ports.once("decision", lambda r=receipt: dumps(ports.catalog.decision(r.version)))  # type: ignore[misc]
        if decision == b"null":
            return {**to_plain(receipt), "replayed": replayed}
        apply(ports, ApplyJob(job.site, job.replica, receipt.version, full=config.apply.verify == "full"))
        replayed.append(receipt.version)


def cmd_commit(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    def act() -> bytes:
        if args.abort is not None:
            return dumps(abort(ports.catalog, args.number, args.abort))
        wait = config.commit.wait_s if args.wait is None else args.wait
        poll = (config.commit.poll_s[0], config.commit.poll_s[1])
        return dumps(decide(ports.catalog, args.number, wait_s=wait, on_timeout=config.commit.on_timeout, poll_s=poll))

    result = _plain(ports.once("decision", act))
    if result["commit"] == (args.abort is not None):
        raise Conflict(
            f"version {result['version']}",
            found="a commit" if result["commit"] else f"an abort ({result['reason']})",
            expected="the decision that was asked for",
            remedy="a decision is final: go on with the next version",
        )
    return {"act": "committed" if result["commit"] else "aborted", **result}


def cmd_apply(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    poll = (config.commit.poll_s[0], config.commit.poll_s[1])
    job = ApplyJob(
        args.site, site_of(config, args.site).replica, args.number, args.wait, poll, config.apply.verify == "full"
    )
    return to_plain(apply(ports, job))


def cmd_verify(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    if (args.site is None) == (args.checkpoint is None):
        raise UsageError("verify", found="both or neither of --site and --checkpoint", expected="one of them")
    policy = loads(Policy, ports.once("policy", lambda: dumps(ports.catalog.policy()[0])), "policy.json")
    if args.site is not None:
        replica = Replica(site_of(config, args.site).replica, args.site)
        record = replica.need()
        if record.applying is not None:
            raise NotReady(
                f"replica {replica.directory}",
                found=f"an interrupted apply of version {record.applying}",
                expected="a whole version",
                remedy="run dcr apply first",
            )
        version = record.version if args.number is None else args.number
        layout = loads(Layout, ports.once("layout", lambda: dumps(ports.catalog.layout(args.site).layout)), "layout")
        checkpoint, subject = replica.checkpoint(layout), f"replica {replica.directory}"
    else:
        newest = ports.once(
            "newest", lambda: dumps(ports.catalog.last_committed(ports.catalog.last_opened())[0].version)
        )
        version = int(newest) if args.number is None else args.number
        t = config.trainer
        checkpoint, subject = (
            Checkpoint(args.checkpoint, policy.trainer, t.step_attribute, t.dtypes),
            f"checkpoint {args.checkpoint}",
        )
    want = _plain(ports.once("manifest", lambda: dumps(ports.catalog.sealed(version)[0])))
    with checkpoint, ports.events.stage("verify"):
        lanes = checkpoint_lanes(ports, checkpoint, policy.tensors)
    wrong = [
        t.name for t, have, expected in zip(policy.tensors, lanes, want["tensors"], strict=True) if have != expected
    ]
    if wrong:
        raise VerifyFailed(
            subject,
            found=f"{len(wrong)} tensors with other bits: {wrong[:5]}",
            expected=f"the bits of version {version}",
            remedy="restore it from an anchor; if it is a training checkpoint, look which step it is",
        )
    state = state_digest(policy.tensors, lanes)
    if state != want["state"]:
        raise BaseMismatch(subject, found=state, expected=want["state"])
    return {
        "act": "verified",
        "subject": subject,
        "version": version,
        "state": state,
        "tensors": len(lanes),
        "seconds": ports.events.seconds(),
    }


def cmd_status(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    return _plain(ports.once("status", lambda: dumps(status(ports.catalog, config, args.last))))


def cmd_run(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    """Encode, refit every site, decide, apply everywhere; stages and bytes of each act in the result."""
    acts = {"encode": cmd_encode(ports, config, args)}
    number = acts["encode"]["version"]
    for site in config.trainer.sites:
        receipt = prepare(ports, _prepare_job(config, site, number, 0.0))
        acts[f"refit {site}"] = to_plain(receipt)
    decide_args = argparse.Namespace(abort=None, number=number, wait=None)
    acts["commit"] = cmd_commit(ports, config, decide_args)
    for site in config.trainer.sites:
        job = ApplyJob(site, site_of(config, site).replica, number, full=config.apply.verify == "full")
        acts[f"apply {site}"] = to_plain(apply(ports, job))
    return {"act": "run", "version": number, "state": acts["encode"]["state"], "acts": acts}


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
}
