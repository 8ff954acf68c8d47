"""Subcommands that keep a policy and its replicas in order: verify, repair, anchor, gc."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..acts.anchor import AnchorJob, anchor
from ..acts.collect import Retention, collect
from ..acts.ports import Ports
from ..acts.replica import RESTORE, Replica
from ..acts.restore import Restored, RestoreJob, restore
from ..acts.state import check_manifest, checkpoint_lanes
from ..acts.tiling import load_layout, load_policy
from ..checkpoint import Checkpoint
from ..config import Config
from ..errors import NotReady, UsageError, VerifyFailed
from ..jsonable import dumps, to_plain
from ..model import Manifest
from .jobs import codec_settings, site_of
from .text import damaged

Result = dict[str, Any]


def cmd_verify(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    policy = load_policy(ports)
    if args.scrub and (args.site is None or args.number is not None):
        raise UsageError(
            "verify",
            found="--scrub with " + ("--checkpoint" if args.site is None else "--version"),
            expected="--scrub with --site alone",
            remedy="leave it out",
        )
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
        layout = load_layout(ports, args.site).layout
        replica.check_layout(record, layout)
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
    manifest = ports.agree(Manifest, "manifest", lambda: ports.catalog.sealed(version)[0])
    check_manifest(policy, manifest)
    with checkpoint, ports.events.stage("verify"):
        try:
            lanes = checkpoint_lanes(ports, checkpoint, policy.tensors)
        except VerifyFailed:  # two copies of one tensor differ; every rank knows
            if not args.scrub:
                raise
            lanes = [""] * len(policy.tensors)
    wrong = [
        t.name for t, have, expected in zip(policy.tensors, lanes, manifest.tensors, strict=True) if have != expected
    ]
    if wrong and args.scrub:
        found = scrub(ports, config, args.site)
        told = [f"{damaged(d)} ({d['words']} differ, in {d['shard']})" for d in damage(found)["damage"][:5]]
        first = "; ".join(told) or f"shards {list(found.shards)}"
        raise VerifyFailed(
            subject,
            found=f"{found.words} words in {found.ranges} ranges with other bits than version {version}: {first}",
            expected=f"the bits of version {version}",
            remedy=f"run dcr repair --site {args.site}: it writes these words, and nothing else",
        )
    if wrong:
        raise VerifyFailed(
            subject,
            found=f"{len(wrong)} tensors with other bits: {wrong[:5]}",
            expected=f"the bits of version {version}",
            remedy=RESTORE if args.site is not None else "look which step these shards are",
        )
    return {
        "act": "verified",
        "subject": subject,
        "version": version,
        "state": manifest.state,
        "tensors": len(lanes),
        "seconds": ports.events.seconds(),
    }


def cmd_anchor(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    t = config.trainer
    job = AnchorJob(args.checkpoint, t.state, args.number, codec_settings(config), t.step_attribute, t.dtypes)
    return to_plain(anchor(ports, job))


def cmd_gc(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    retention = Retention(config.retention.anchors, config.retention.lease_s)
    found = json.loads(ports.once("collection", lambda: dumps(collect(ports.catalog, retention, dry=args.dry_run))))
    return {"act": "would collect" if args.dry_run else "collected", **found}


def cmd_repair(ports: Ports, config: Config, args: argparse.Namespace) -> Result:
    found = restore(ports, restore_job(config, args.site, write=True))
    return {"act": "repaired" if found.written else "nothing to repair", "site": args.site, **damage(found)}


def restore_job(config: Config, site: str, *, write: bool) -> RestoreJob:
    relay = config.relay
    return RestoreJob(site, site_of(config, site).replica, write=write, degree=relay.degree, window=relay.window)


def scrub(ports: Ports, config: Config, site: str) -> Restored:
    """Which words of a damaged replica differ from its version's."""
    return restore(ports, restore_job(config, site, write=False))


def damage(found: Restored) -> Result:
    """What was found to differ, as plain data."""
    return {
        "version": found.version,
        "ranges": found.ranges,
        "words": found.words,
        "shards": list(found.shards),
        "damage": [to_plain(d) for d in found.damage],
    }
