"""The command line as a user reads it: every subcommand, option and help text in one place."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from .. import __version__
from .plan_options import bench_options, plan_options
from .quantities import count, seconds

_DESCRIPTION = """\
dcr-mpi brings a rollout cluster's copy of a model to exactly the trainer's bits by sending what changed.

One version's cycle:   dcr encode NEW   ->   dcr refit --site S   ->   dcr commit   ->   dcr apply --site S
(trainer's cluster)                     (each site: weights untouched)  (one decision)   (each site: in place)

Every command may be started alone or under mpirun / srun, and may be run again after any failure."""

_EPILOG = "Exit codes: 0 done; every class of error has its own, in the README. Any other non-zero code is a failure."


def build() -> argparse.ArgumentParser:
    """The parser; ``args.command`` names the subcommand."""
    top = argparse.ArgumentParser(
        "dcr", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"dcr-mpi {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "-c", "--config", type=Path, default=Path("dcr.yaml"), metavar="FILE", help="configuration (default: dcr.yaml)"
    )
    shared.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one configuration key, as in --set codec.level=3; may be repeated",
    )
    shared.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    shared.add_argument("--receipt", type=Path, metavar="FILE", help="also write the result there, atomically")
    shared.add_argument(
        "--needs",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="first hold this receipt of an earlier command against the store; may be repeated",
    )

    def add(name: str, text: str, common: bool = True) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[shared] if common else [])

    _synth(add("synth", "Write one step of a made-up transformer as training shards, with layouts for it.", False))
    _init(add("init", "Register a policy at the trainer (--checkpoint), or a site and its replica (--site)."))
    encode = add("encode", "Find what changed since the last committed version and seal it as the next one.")
    encode.add_argument("new", type=Path, help="directory of the new checkpoint's shards")
    encode.add_argument(
        "--base", type=Path, metavar="DIR", help="directory that holds the base version (default: the one on record)"
    )
    _version(encode, "refuse to make any other version than this")
    refit = add(
        "refit", "At a site: fetch, relay and decode the next version into a journal. The weights are not touched."
    )
    _site(refit)
    _version(refit, "this version (default: the next one that is made from the replica's)")
    _wait(refit, 0.0, "for a version, each of its parts while it is encoded, and its manifest")
    refit.add_argument(
        "--catch-up",
        action="store_true",
        help="also apply it if it is committed, and go on until no sealed version is left",
    )
    commit = add("commit", "Decide on a version for everybody: commit once every site has prepared it, or abort.")
    _version(commit, "this version (default: the newest)")
    _wait(commit, None, "for the sites (default: commit.wait_s of the configuration)")
    commit.add_argument("--abort", metavar="REASON", nargs="?", const="asked for", help="abort it instead")
    commit.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SITE",
        help="do not wait for this site, which catches up later; may be repeated",
    )
    apply = add("apply", "At a site: write a committed version's new words into the replica, in place.")
    _site(apply)
    _version(apply, "this version (default: the one that is prepared)")
    _wait(apply, 0.0, "for the decision")
    verify = add(
        "verify", "Read every word of a replica or checkpoint and compare its state digest with the version's."
    )
    what = verify.add_mutually_exclusive_group(required=True)
    what.add_argument("--site", metavar="NAME", help="verify this site's replica")
    what.add_argument("--checkpoint", type=Path, metavar="DIR", help="verify training shards instead")
    _version(verify, "compare with this version (default: the replica's own, or the newest committed)")
    verify.add_argument(
        "--scrub", action="store_true", help="on damage, rebuild the version beside it and name the words that differ"
    )
    repair = add(
        "repair", "Rebuild a site's version from an anchor and the chain, and write only what differs into the replica."
    )
    _site(repair)
    anchor = add("anchor", "Publish the last committed version whole: new, lagging and damaged replicas start from it.")
    anchor.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="training shards that hold it (default: the ones on record)"
    )
    _version(anchor, "this committed version instead")
    gc = add("gc", "Delete from the store what no registered site needs any more.")
    gc.add_argument("--dry-run", action="store_true", help="say what would be deleted, delete nothing")
    status = add("status", "Versions, decisions and sites of the policy, as the store knows them.")
    status.add_argument("--last", type=count, default=5, metavar="N", help="show the last N versions (default: 5)")
    doctor = add(
        "doctor", "What is wrong with launcher, MPI, GPU, HDF5, store, clock, room and keys, each with a remedy."
    )
    doctor.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="also look whether these shards can be read here; may be repeated",
    )
    _report(add("report", "Figures of a run of versions: payload, changes by kind, seconds by stage, work by rank."))
    inspect = add("inspect", "What is inside a shard, a part, a journal or any JSON object of the store.", False)
    inspect.add_argument("path", type=Path, help="the file")
    inspect.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    keygen = add(
        "keygen", "Make a key that signs objects of the store, and print the public line for trust files.", False
    )
    keygen.add_argument("file", type=Path, help="new file for the key; only its owner will be able to read it")
    keygen.add_argument(
        "--shared", action="store_true", help="one key for all sides (HMAC): whoever can verify can also sign"
    )
    keygen.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    _census(add("census", "What changed between any two checkpoints, and what coding it would cost.", False))
    plan_options(add("plan", "What a refit would take: seconds by stage, bytes, pause, and the best settings.", False))
    bench_options(
        add(
            "bench",
            "Measure this machine for dcr plan: coding, disk, store, fixed costs. Up to a minute.",
            False,
        )
    )
    run = add(
        "run", "One version's whole cycle on one machine: encode, refit, commit and apply for every configured site."
    )
    run.add_argument("new", type=Path, help="directory of the new checkpoint's shards")
    run.add_argument(
        "--base", type=Path, metavar="DIR", help="directory that holds the base version (default: the one on record)"
    )
    _resident(add)
    return top


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT, as in 127.0.0.1:9400 or [::1]:9400")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _resident(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    follow = add(
        "follow", "At a site, a job that stays: prepare versions as they are encoded, apply them once committed."
    )
    _site(follow)
    _wait(follow, 600.0, "for each part of a version that is being encoded (default: 600)")
    follow.add_argument(
        "--before", metavar="HOOK", help="before each apply: a shell command, or a URL to post to (pause an engine)"
    )
    publish = add("publish", "At the trainer, a job that stays: encode checkpoints as they appear, and commit them.")
    publish.add_argument(
        "pattern",
        nargs="+",
        help="quoted pattern of checkpoint directories, as in 'run/step-*'; each appears by a rename, whole",
    )
    publish.add_argument(
        "--every",
        action="store_true",
        help="publish all of them (default: the newest one, those before it are passed over)",
    )
    for parser, when in ((follow, "after each apply (resume an engine)"), (publish, "after each decision")):
        parser.add_argument("--after", metavar="HOOK", help=f"{when}: a shell command, or a URL to post to")
        parser.add_argument(
            "--hook-s", type=seconds, default=600.0, metavar="S", help="how long a hook may take (default: 600)"
        )
        parser.add_argument("--until", type=_whole, metavar="N", help="end once version N is done (default: never)")
        parser.add_argument(
            "--idle", type=seconds, metavar="S", help="end after S seconds without anything to do (default: never)"
        )
        parser.add_argument(
            "--metrics", type=Path, metavar="FILE", help="Prometheus text file, replaced after each version"
        )
        parser.add_argument(
            "--listen",
            type=_address,
            metavar="HOST:PORT",
            help="serve /metrics and /healthz over HTTP from rank 0, as in 127.0.0.1:9400 (port 0: any)",
        )


def _synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="directory; gets step-000000/ and so on, and layouts/")
    parser.add_argument("--step", type=_whole, default=0, metavar="N", help="optimiser step to write (default: 0)")
    parser.add_argument(
        "--changed", type=float, default=0.03, metavar="F", help="fraction of weights one step changes (default: 0.03)"
    )
    parser.add_argument(
        "--law", choices=["adam", "uniform"], default="adam", help="how the changes are spread (default: adam)"
    )
    parser.add_argument(
        "--size", choices=["small", "tiny"], default="small", help="about 57M parameters, or a few thousand"
    )
    parser.add_argument("--shards", type=count, default=4, metavar="N", help="training shards (default: 4)")
    parser.add_argument(
        "--site-shards", type=count, default=2, metavar="N", help="shards of the engine's layout (default: 2)"
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="of the random numbers (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _census(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", type=Path, help="directory of the earlier checkpoint's shards")
    parser.add_argument("new", type=Path, help="directory of the later one's, under the same file names")
    parser.add_argument(
        "--layout",
        type=Path,
        metavar="FILE",
        help="layout of both: counts every tensor once, under its own name (default: every dataset as it lies)",
    )
    parser.add_argument(
        "--dtype",
        dest="dtypes",
        action="append",
        default=[],
        metavar="PATTERN=DTYPE",
        help="what raw storage means, as in '*.weight=bf16'; may be repeated",
    )
    parser.add_argument(
        "--sample",
        type=count,
        default=256,
        metavar="MIB",
        help="code about this much by every scheme (default: 256); everything is counted in any case",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots there")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="gets report.json and the plots, each an SVG file"
    )
    parser.add_argument(
        "--versions", type=_range, metavar="A..B", help="these (default: the newest 50); A.. and one number work too"
    )
    parser.add_argument("--html", action="store_true", help="also write report.html, one page with all of it")
    parser.add_argument(
        "--events",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="logs of another place, besides those in events.dir; may be repeated",
    )
    parser.add_argument(
        "--receipts",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="a file written by --receipt, or a directory of them; may be repeated",
    )


def _init(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", type=Path, metavar="DIR", help="trainer: these shards become version 0")
    what.add_argument("--site", metavar="NAME", help="site: register its layout and create its replica")
    parser.add_argument(
        "--no-anchor", action="store_true", help="trainer: do not upload version 0 whole (sites then need --from)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="site: fill the replica from these training shards instead of the newest anchor",
    )
    parser.add_argument("--register-only", action="store_true", help="site: register the layout, create no replica")


def _site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", required=True, metavar="NAME", help="which site of the configuration this is")


def _version(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--version", dest="number", type=_whole, metavar="N", help=text)


def _wait(parser: argparse.ArgumentParser, default: float | None, text: str) -> None:
    parser.add_argument("--wait", type=seconds, default=default, metavar="S", help=f"wait up to S seconds {text}")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number, 0 or more")
    return int(text)


def _range(text: str) -> tuple[int, int | None]:
    first, dots, last = text.partition("..")
    numbers = (first, last or first)
    if not all(n.isdecimal() for n in numbers) or int(numbers[0]) > int(numbers[1]):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected versions, as in 3..9, 3.. or 3")
    return int(first), None if dots and not last else int(numbers[1])
