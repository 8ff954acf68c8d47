"""``dcr doctor``: every check, on every rank where it can differ, and the exit code of the first that failed."""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import comm
from ...comm import Comm
from ...config import Config
from ...errors import DcrError, LaunchError
from ...jsonable import dumps, to_plain
from . import launch, node, relay, remote, sites
from .agreement import Facts, agreement, seen_by_all
from .finding import Finding, fail, guarded, merged, ok, warn

_TELLING_S = 2.0  # for the one rank that tells what happened, before the launcher ends all
_DEFAULT = Path("dcr.yaml")
Result = dict[str, Any]


def doctor(args: argparse.Namespace, load: Callable[[], Config], tell: Callable[[Result], None]) -> int:
    """Run every check and tell; returns 0 where none failed.

    Parameters
    ----------
    load : callable
        Reads the configuration.
    tell : callable
        Prints the result; called by one rank.
    """
    config, read = _configured(args, load)
    launched = comm.launched_size(os.environ) is not None
    try:
        ranks = comm.start(60.0, expected=config.ranks if config and launched else None, patience_s=120.0)
    except LaunchError as error:
        if comm.launched_rank(os.environ):
            time.sleep(_TELLING_S)
            return error.code
        findings = [*read, *guarded("mpi library", launch.mpi_library), *launch.refused(error)]
        tell(_result(findings, 1, [socket.gethostname()]))
        return error.code
    return comm.run(ranks, lambda: _examine(ranks, config, read, args.checkpoint, launched, tell))


def _configured(args: argparse.Namespace, load: Callable[[], Config]) -> tuple[Config | None, list[Finding]]:
    if args.config == _DEFAULT and not args.config.exists():
        told = "its store, directories and keys are not looked at"
        return None, [warn("configuration", f"no {_DEFAULT} here: {told}", "one", "name it with --config")]
    try:
        return load(), [ok("configuration", str(args.config))]
    except DcrError as error:
        return None, [fail("configuration", error)]


def _examine(
    ranks: Comm,
    config: Config | None,
    read: list[Finding],
    checkpoints: list[Path],
    launched: bool,
    tell: Callable[[Result], None],
) -> int:
    hosts = [raw.decode() for raw in ranks.allgather(socket.gethostname().encode(), "names of the hosts")]
    facts = [Facts(**json.loads(r)) for r in ranks.allgather(dumps(Facts.here(config)), "what each rank is")]
    mine = hosts[ranks.rank]
    lead = hosts.index(mine) == ranks.rank  # the first rank of each host looks at the host
    found = list(read)
    if lead:
        found += _host(config, hosts.count(mine), alone=not launched)
    if config is not None:
        found += guarded("gpu", lambda: node.gpu(config))
    probe = remote.Probe(config) if config is not None else None
    found += guarded("store", probe.look) if probe is not None else ()
    if config is not None:
        found += guarded("direct relay", lambda: relay.direct(config))
    ranks.barrier("the store, tried by all ranks")
    found += guarded("store", probe.tidy) if probe is not None else ()
    if lead:
        found += sites.look(config, checkpoints, len(set(hosts)), first=ranks.rank == 0)
    if ranks.size > 1 and config is not None and len({f.config for f in facts}) == 1:
        found += seen_by_all(ranks, sites.directories(config))
    every = ranks.allgather(dumps([to_plain(f) for f in found]), "what each rank found")
    lists = [[Finding(**f) for f in json.loads(r)] for r in every]
    everything = merged(lists, hosts)
    at = next((k + 1 for k, f in enumerate(everything) if f.check == "mpi library"), 0)
    result = _result([*everything[:at], *agreement(facts, hosts, launched), *everything[at:]], ranks.size, hosts)
    if ranks.rank == 0:
        tell(result)
    return int(result["code"])


def _host(config: Config | None, ranks_here: int, alone: bool) -> Iterator[Finding]:
    yield from node.packages()
    yield from guarded("mpi library", launch.mpi_library)
    if alone:
        yield from guarded("launcher", launch.launcher)
    yield from node.cores(ranks_here)
    if config is not None:
        yield from guarded("memory", lambda: node.memory(config, ranks_here))
    yield from guarded("kernel cache", node.compiled)
    yield from guarded("hdf5", sites.filters)


def _result(findings: list[Finding], size: int, hosts: list[str]) -> Result:
    code = next((f.code for f in findings if f.level == "fail"), 0)
    plain = [to_plain(f) for f in findings]
    return {"act": "doctor", "ranks": size, "hosts": sorted(set(hosts)), "findings": plain, "code": code}
