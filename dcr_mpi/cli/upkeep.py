"""Subcommands that keep a policy and its replicas in order: anchor, gc, repair, and what verify --scrub adds."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..acts.anchor import AnchorJob, anchor
from ..acts.collect import Retention, collect
from ..acts.ports import Ports
from ..acts.restore import Damage, Restored, RestoreJob, restore
from ..config import Config
from ..jsonable import dumps, to_plain
from .jobs import codec_settings, site_of

Result = dict[str, Any]


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
    """What was found to differ, as plain data and as lines for people."""
    return {
        "version": found.version,
        "ranges": found.ranges,
        "words": found.words,
        "shards": list(found.shards),
        "damage": [to_plain(d) for d in found.damage],
    }


def damage_text(d: Damage) -> str:
    """One range of damage in words."""
    where = f"box {d.box.start}..{d.box.stop}, words {d.start}..{d.stop}"
    return f"tensor {d.tensor!r}, {where} ({d.words} differ, in {d.shard})"
