"""``dcr report``: the figures of a run of versions, into a directory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .. import durable
from ..acts.ports import Ports
from ..acts.report import ReportJob, report
from ..config import Config
from ..jsonable import dumps
from .report_draw import figures, page


def cmd_report(ports: Ports, config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """Rank 0 gathers and writes; the files are made anew by every run, each atomically."""
    first, last = args.versions or (None, None)
    own = () if config.events.dir is None or not config.events.dir.is_dir() else (config.events.dir,)
    sites = tuple(sorted({*config.sites, *config.trainer.sites}))
    job = ReportJob(first, last, sites, (*own, *args.events), tuple(args.receipts))

    def make() -> bytes:
        durable.make_dirs(args.out)
        result = report(ports.catalog, job)
        plots = figures(result)
        texts = {f"{stem}.svg": plot for stem, (_, _, plot) in plots.items()}
        if args.html:
            texts["report.html"] = page(result, plots)
        out: Path = args.out
        result["files"] = [str(out / name) for name in (*texts, "report.json")]
        for name, text in texts.items():
            durable.replace(out / name, text.encode())
        durable.replace(out / "report.json", json.dumps(result, indent=1, sort_keys=True).encode())
        return dumps(result)

    result: dict[str, Any] = json.loads(ports.once("report", make))
    return result
