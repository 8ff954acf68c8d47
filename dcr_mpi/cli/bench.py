"""``dcr bench``: measures this machine and writes the calibration that ``dcr plan --calibration`` takes."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from .. import durable
from ..acts.publish import CodecSettings
from ..calibrate import Sample, Stored, calibrate
from ..config import load
from ..errors import UsageError
from ..jsonable import dumps, to_plain
from ..kernels import get_kernels
from ..plan import MIB

_RANKS = 16  # at most, if nobody says: of a node's memory some GB


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the file."""
    began = time.monotonic()
    if not args.dir.is_dir():
        raise UsageError(
            f"--dir {args.dir}", found="no such directory", expected="the one whose disk will hold replicas"
        )
    store: Stored | None = None
    bucket = CodecSettings().bucket_bytes
    if args.config is not None:
        config = load(args.config)
        store = Stored(config.store.url, config.store.s3)
        bucket = int(config.codec.bucket_mib * MIB)
    ranks = args.ranks or min(len(os.sched_getaffinity(0)), _RANKS)
    speeds = calibrate(get_kernels(), Sample(args.law, args.changed, args.mib * MIB, bucket), args.dir, store, ranks)
    if args.out is not None:
        durable.replace(args.out, dumps(speeds) + b"\n")
    return {
        "act": "bench",
        "speeds": to_plain(speeds),
        "out": str(args.out) if args.out is not None else None,
        "seconds": {"bench": time.monotonic() - began},
    }
