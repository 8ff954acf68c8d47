"""From ``argv`` to an exit code: opens the ports that an act is given, and owns the job's end."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import comm, durable
from ..catalog import Catalog
from ..config import Config, load
from ..errors import DcrError, ResourceError, UsageError, from_os_error, printable
from ..events import Events
from ..jsonable import dumps
from ..kernels import get_kernels
from ..signing import ENVIRONMENT, NO_KEYS, NOBODY, Keyring, generate, load_keyring
from ..store import open_store
from . import text
from .needs import check_needed
from .parser import build

_NO_WORDS = frozenset(["commit", "gc", "report", "status"])  # commands that look at no weights


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = build().parse_args(argv)
    comm.listen()
    try:
        if args.command == "doctor":
            from .doctor import doctor

            return doctor(args, lambda: load(args.config, _overrides(args.overrides)), lambda r: _finish(args, r))
        if args.command in ("synth", "inspect", "census", "keygen", "plan", "bench"):
            return _named(args, lambda: _alone(args))
        config = load(args.config, _overrides(args.overrides))
        # Others wait for rank 0 while that waits for a publisher, for sites or for a hook: that is no silence.
        sites_s = config.commit.wait_s if args.command in ("commit", "publish", "run") else 0.0
        serves_s = config.direct.serve_s if args.command == "encode" and config.relay.transport == "direct" else 0.0
        waits = (getattr(args, "wait", None) or 0.0, sites_s, serves_s, getattr(args, "hook_s", 0.0))
        patience = config.relay.patience_s + max(waits)
        ranks = comm.start(config.relay.timeout_s, int(config.relay.chunk_mib * (1 << 20)), config.ranks, patience)
        return comm.run(ranks, lambda: _named(args, lambda: _act(args, config, ranks)))
    except DcrError as error:
        return _fail(error)
    except KeyboardInterrupt:
        print("dcr: interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def program() -> NoReturn:
    """The process ``dcr``: :func:`main`, and an end that waits for no fetch or upload under way after an error."""
    code = main()
    if code and threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python's own end would join the worker threads: a stalled store takes minutes
    sys.exit(code)


def _named(args: argparse.Namespace, act: Callable[[], int]) -> int:
    """Run an act; what the machine lacks gets an error class too."""
    try:
        return act()
    except MemoryError:
        raise ResourceError(
            "memory",
            found="none left",
            expected="a few parts per rank",
            remedy="lower codec.part_mib or relay.window, or start fewer ranks per node",
        ) from None
    except OSError as error:
        raise from_os_error(error, str(error.filename or f"dcr {args.command}")) from error


def _fail(error: DcrError) -> int:
    print(f"dcr: error ({type(error).__name__}, exit code {error.code}): {error}", file=sys.stderr)
    return error.code


def _overrides(pairs: Sequence[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError("--set", found=repr(pair), expected="KEY=VALUE", remedy="as in --set codec.level=3")
        out[key] = value
    return out


def _act(args: argparse.Namespace, config: Config, ranks: comm.Comm) -> int:
    from .commands import COMMANDS

    if args.receipt is not None and ranks.rank == 0:
        check_output("--receipt", args.receipt)
    if getattr(args, "metrics", None) is not None and ranks.rank == 0:
        folder = args.metrics.resolve().parent
        if not folder.is_dir():  # a directory that is made for it is none that a collector reads
            raise UsageError(f"--metrics {args.metrics}", found=f"no directory {folder}", expected="the collector's",
                             remedy="correct it, or make it")  # fmt: skip
        check_output("--metrics", args.metrics)
    # Rank 0 alone reads documents, so no other has a key.
    keys = load_keyring(config.keys.file, config.keys.trust) if ranks.rank == 0 else _witness(config)
    store = open_store(config.store.url, config.store.s3)
    # What reads documents alone compiles nothing, opens no GPU, and asks for none on a node that has none.
    chosen = ("numpy", "cpu") if args.command in _NO_WORDS else (config.kernels, config.device)
    kernels = get_kernels(*chosen)
    subject = getattr(args, "site", None) or "trainer"
    with Events(config.events.dir, args.command, subject, ranks.rank, ranks.size, config.events.progress_s) as events:
        from ..acts.ports import Ports
        from .jobs import inlet_of

        ports = Ports(Catalog(store, config.policy, keys), ranks, kernels, events, inlet=inlet_of(config))
        if args.needs:
            ports.once("receipts of earlier acts", lambda: _check_all(ports.catalog, args.needs))
        result = COMMANDS[args.command](ports, config, args)
    if ranks.rank == 0:
        _finish(args, result)
    return 0


def _witness(config: Config) -> Keyring:
    """What another rank than 0 can tell an offer of the direct relay by: public keys alone. It reads nothing else."""
    if config.relay.transport != "direct":
        return NOBODY
    if config.keys.trust is None:
        return NOBODY if config.keys.file is not None or ENVIRONMENT in os.environ else NO_KEYS
    try:
        return load_keyring(None, config.keys.trust, {})
    except DcrError:
        return NOBODY  # the file is not on this node


def _finish(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.receipt is not None:
        durable.replace(args.receipt, dumps(result))
    _print(args, result)


def _check_all(catalog: Catalog, receipts: Sequence[Path]) -> bytes:
    for path in receipts:
        check_needed(catalog, path)
    return b""


def check_output(option: str, path: Path) -> None:
    """A file that cannot be written is found out before the work, not after it."""
    if path.is_dir():
        raise UsageError(f"{option} {path}", found="a directory", expected="a file", remedy="name a file in it")
    folder = path.resolve().parent
    durable.make_dirs(folder)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(
            f"{option} {path}",
            found=f"{folder} that is no directory, or may not be written",
            expected="a directory for it",
            remedy="give this user access, or name another place",
        )


def _alone(args: argparse.Namespace) -> int:
    if args.command == "inspect":
        from .inspect import inspect

        _print(args, inspect(args.path))
        return 0
    if args.command == "keygen":
        _print(args, {"act": "keygen", "file": str(args.file), "public": generate(args.file, args.shared)})
        return 0
    if args.command == "census":
        from .census import run

        if args.html is not None:
            check_output("--html", args.html)
        _print(args, run(args))
        return 0
    if args.command == "plan":
        from . import plan

        _print(args, plan.run(args))
        return 0
    if args.command == "bench":
        from . import bench

        if args.out is not None:
            check_output("--out", args.out)
        _print(args, bench.run(args))
        return 0
    _print(args, _synth(args))
    return 0


def _synth(args: argparse.Namespace) -> dict[str, Any]:
    from .. import synth

    if not 0 < args.changed < 1:
        raise UsageError(
            "--changed",
            found=args.changed,
            expected="a fraction between 0 and 1",
            remedy="0.03 is 3 % of the weights",
        )
    shape = synth.TINY if args.size == "tiny" else synth.Shape()
    if (
        shape.groups % args.shards
        or shape.experts % args.shards
        or shape.padded % args.shards
        or shape.site_padded % args.site_shards
    ):
        raise UsageError(
            "--shards and --site-shards",
            found=f"{args.shards} and {args.site_shards}",
            expected="divisors of the model's groups, experts and vocabulary rows",
            remedy="1, 2 and 4 work for both",
        )
    where: Path = args.out / f"step-{args.step:06d}"
    layouts = synth.layouts(shape, ["site"], args.shards, args.site_shards)
    durable.make_dirs(args.out / "layouts")
    for name, layout in layouts.items():
        durable.replace(args.out / "layouts" / f"{name}.json", dumps(layout))
    synth.write_checkpoint(where, layouts["trainer"], args.step, changed=args.changed, law=args.law, seed=args.seed)
    return {
        "act": "synth",
        "directory": str(where),
        "step": args.step,
        "shards": args.shards,
        "layouts": str(args.out / "layouts"),
    }


def _print(args: argparse.Namespace, result: dict[str, Any]) -> None:
    try:
        print(
            json.dumps(result, sort_keys=True, allow_nan=False) if args.json else printable(text.render(result)),
            flush=True,
        )
    except BrokenPipeError:  # as in `dcr inspect PART | head -1`: the work is done, and nobody wants to read on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
