"""``dcr census``: arguments in, counts out, and a page with plots where one is asked for."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .. import durable
from ..acts.census import CensusJob, census
from ..dtypes import dtype
from ..errors import GeometryError, UsageError
from ..kernels import get_kernels
from ..progress import Progress
from .census_html import page
from .jobs import read_layout

_EVERY_S = 10.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Count, and write the page."""
    began = time.monotonic()
    if args.layout is not None and not args.layout.is_file():
        raise UsageError(
            f"--layout {args.layout}",
            found="no such file",
            expected="the JSON of a layout",
            remedy="correct the path, or leave it out to count every dataset as it lies",
        )
    job = CensusJob(args.base, args.new, read_layout(args.layout), _dtypes(args.dtypes), args.sample << 20)
    shown: list[Progress] = []

    def started(total: int) -> Callable[[int], None]:
        shown.append(Progress(total, "census", _EVERY_S, sys.stderr))
        return shown[0].add

    result = census(job, get_kernels(device="auto"), started)
    for progress in shown:
        progress.done()
    result["seconds"] = {"census": time.monotonic() - began}
    if args.html is not None:
        durable.replace(args.html, page(result).encode())
    return result


def _dtypes(pairs: Sequence[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        pattern, equals, name = pair.rpartition("=")
        if not equals or not pattern:
            raise UsageError("--dtype", found=repr(pair), expected="PATTERN=DTYPE", remedy="as in '*.weight=bf16'")
        try:
            out[pattern] = dtype(name).name
        except GeometryError as error:
            raise UsageError(f"--dtype {pair}", found=error.found, expected=error.expected) from None
    return out
