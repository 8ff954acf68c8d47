"""Options of ``dcr plan`` and ``dcr bench``."""

from __future__ import annotations

import argparse
from pathlib import Path

from .quantities import count, fraction, mix, number, parameters, rate, seconds, size

_LONGEST_S, _MOST = 1e6, 10**7


def plan_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model and what changes")
    model.add_argument("--parameters", type=parameters, metavar="N", help="how many, as in 120B (default: 1B)")
    model.add_argument("--size", type=size, metavar="BYTES", help="of a checkpoint instead, as in 247.2GB")
    model.add_argument(
        "--dtype",
        dest="mix",
        type=mix,
        action="append",
        default=[],
        metavar="DTYPE=SHARE[@F]",
        help="a dtype's share of the parameters, and the fraction of its words that change where that differs; "
        "may be repeated (default: bf16=1)",
    )
    model.add_argument(
        "--changed", type=fraction, default=0.03, metavar="F", help="fraction of words that change (default: 0.03)"
    )
    model.add_argument(
        "--law", choices=["adam", "uniform"], default="adam", help="how changes are spread (default: adam)"
    )
    model.add_argument("--tiles", type=_count, metavar="N", help="of the tiling (default: one per 8 MiB, 8000 at most)")
    ranks = parser.add_argument_group("clusters")
    ranks.add_argument("--trainer-ranks", type=_count, metavar="N", help="that encode (default: one per 4 GB)")
    ranks.add_argument("--site-ranks", type=_count, metavar="N", help="at each site (default: one per 4 GB)")
    ranks.add_argument("--site-nodes", type=_count, metavar="N", help="with a disk each (default: one per 8 ranks)")
    ranks.add_argument("--sites", type=_count, default=1, metavar="N", help="how many (default: 1)")
    ranks.add_argument(
        "--replicas", type=_count, default=1, metavar="N", help="copies of the model at a site (default: 1)"
    )
    ranks.add_argument(
        "--cores",
        type=_count,
        metavar="N",
        help="all of it is on one machine of N cores (default: a core for each rank)",
    )
    links = parser.add_argument_group("links")
    links.add_argument(
        "--link",
        type=rate,
        default=330e6,
        metavar="RATE",
        help="from the trainer, as in 330MB/s or 10Gbit/s (default: 330MB/s)",
    )
    links.add_argument("--site-link", type=rate, metavar="RATE", help="into each site (default: as --link)")
    links.add_argument(
        "--cluster-link", type=rate, default=2.5e9, metavar="RATE", help="of a rank inside a site (default: 20Gbit/s)"
    )
    links.add_argument(
        "--latency",
        type=_seconds,
        metavar="S",
        help="of the wide-area link, one way (default: 0.03, or 0 where the calibration measured the store over it)",
    )
    links.add_argument(
        "--transport",
        choices=["store", "direct"],
        default="store",
        help="through the store, or from the training job to roots at each site (default: store)",
    )
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument(
        "--mode",
        choices=["staying", "jobs"],
        default="staying",
        help="jobs that stay (publish, follow), or one job per act (default: staying)",
    )
    jobs.add_argument(
        "--launch", type=_seconds, default=0.0, metavar="S", help="to start a job, with --mode jobs (default: 0)"
    )
    jobs.add_argument(
        "--poll", type=_seconds, nargs=2, default=[0.05, 2.0], metavar="S", help="as commit.poll_s (default: 0.05 2)"
    )
    jobs.add_argument("--window", type=_count, default=4, metavar="N", help="as relay.window (default: 4)")
    choice = parser.add_argument_group("what is chosen, where it is not given")
    choice.add_argument("--positions", choices=["class", "plain"], help="codec.positions (default: the better)")
    choice.add_argument("--part-mib", type=_amount, metavar="MIB", help="codec.part_mib (default: the best)")
    choice.add_argument("--degree", type=_count, metavar="N", help="relay.degree (default: the best)")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="what dcr bench wrote (default: stated defaults)"
    )
    parser.add_argument("--disk", type=rate, metavar="RATE", help="fsync of a node, instead of the calibration's")
    parser.add_argument(
        "--paper", action="store_true", help="print the NeMo-DCR paper's cases beside our projection instead"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(untold=vars(parser.parse_args([])))  # what --paper has no use for is told from these


def bench_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the calibration there (default: it is only printed)"
    )
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="measure the store of this configuration, and code in buckets of its size (default: no store, 32 MiB)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help="whose disk is measured (default: where you are)"
    )
    parser.add_argument(
        "--changed", type=fraction, default=0.03, metavar="F", help="fraction of words that change (default: 0.03)"
    )
    parser.add_argument(
        "--law", choices=["adam", "uniform"], default="adam", help="how changes are spread (default: adam)"
    )
    parser.add_argument(
        "--ranks",
        type=_count,
        metavar="N",
        help="that code at the same time, of which one is measured (default: one per core that is ours, 16 at most)",
    )
    parser.add_argument("--mib", type=_count, default=32, metavar="MIB", help="of words to code (default: 32)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _count(text: str) -> int:
    return count(text, _MOST)


def _seconds(text: str) -> float:
    return seconds(text, _LONGEST_S)


def _amount(text: str) -> float:
    return number(text, "MiB, over 0, at most 1e6", 1e-6, 1e6)
