"""What acts cost besides the words: whole versions of two tiny models through the real acts, one with many more tiles.

Both have next to no words, so what an act takes, less the stages that work on words, is documents, records and
receipts. They run in one process one after another, as in a job that stays. The first version loads what it needs; of
the others the shorter time of each act counts, as other work on the machine only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ..acts.apply import ApplyJob, apply
from ..acts.commit import abort, decide
from ..acts.create import CreateJob, create_replica
from ..acts.encode import encode
from ..acts.init import InitJob, init_policy, register_site
from ..acts.next_version import EncodeJob
from ..acts.ports import Ports
from ..acts.prepare import prepare
from ..acts.prepare_plan import PrepareJob
from ..acts.replica import Replica
from ..catalog import Catalog
from ..comm import Solo
from ..events import Events
from ..jsonable import dumps
from ..kernels.api import Kernels
from ..plan import Fixed
from ..signing import NO_KEYS
from ..store import open_store
from ..synth import TINY, Shape, site_layout, trainer_layout, write_checkpoint
from .process import process_s

_STARTS = 3
_SITE, _STEPS, _LAYERS = "s", 3, (1, 6)
_WORDS = ("encode", "upload", "decode", "journal", "write")  # stages whose time is the words'; relay waits for them


@dataclass(frozen=True)
class Acts:
    """Fixed costs of each act, the start of a process, and what coding takes for a tile; seconds of a core."""

    encode: Fixed
    refit: Fixed
    apply: Fixed
    start_s: float
    encode_tile_s: float
    prepare_tile_s: float


@dataclass(frozen=True)
class _Point:
    tiles: int
    took: dict[str, float]


def fixed_costs(kernels: Kernels, directory: Path) -> Acts:
    """Measure in ``directory``, which should be a file system in memory: a real store's latency counts elsewhere."""
    small, large = (_point(kernels, directory / f"acts-{n}", replace(TINY, layers=n)) for n in _LAYERS)

    def line(act: str) -> Fixed:
        tile = max(0.0, (large.took[act] - small.took[act]) / (large.tiles - small.tiles))
        return Fixed(max(0.0, small.took[act] - tile * small.tiles), tile)

    return Acts(
        line("encode"),
        line("refit"),
        line("apply"),
        _start(directory / f"acts-{_LAYERS[0]}", small.took["encode"]),
        line("encode.encode").tile_s,
        line("refit.decode").tile_s,
    )


def _point(kernels: Kernels, directory: Path, shape: Shape) -> _Point:
    directory.mkdir()
    trainer, site = trainer_layout(shape), site_layout(shape)
    catalog, replica = Catalog(open_store(str(directory / "store")), "p", NO_KEYS), directory / "replica"
    state, took = directory / "state", dict[str, list[float]]()

    def act(name: str, do: Callable[[Ports], object]) -> None:
        with Events(None, name, _SITE, progress_s=0.0) as events:
            begun, cpu = time.monotonic(), time.process_time()
            do(Ports(catalog, Solo(), kernels, events))
            share = min(1.0, (time.process_time() - cpu) / (time.monotonic() - begun))
        stages = events.seconds()
        took.setdefault(name, []).append((time.process_time() - cpu) - share * sum(stages.get(s, 0.0) for s in _WORDS))
        for stage in ("encode", "decode"):
            took.setdefault(f"{name}.{stage}", []).append(share * stages.get(stage, 0.0))

    def step(number: int) -> Path:
        where = directory / f"step-{number}"
        write_checkpoint(where, trainer, number)
        return where

    act("init", lambda ports: init_policy(ports, InitJob(step(0), state, trainer, anchor=False)))
    act("register", lambda ports: register_site(ports, _SITE, site))
    act("create", lambda ports: create_replica(ports, CreateJob(_SITE, replica, directory / "step-0")))
    for number in range(1, _STEPS + 1):
        new = step(number)
        act("encode", lambda ports, new=new: encode(ports, EncodeJob(new, None, state, (_SITE,))))  # type: ignore[misc]
        act("refit", lambda ports: prepare(ports, PrepareJob(_SITE, replica)))
        decide(catalog, wait_s=0.0)
        act("apply", lambda ports: apply(ports, ApplyJob(_SITE, replica)))
    (directory / "trainer.json").write_bytes(dumps(trainer))
    (directory / "site.json").write_bytes(dumps(site))
    step(_STEPS + 1)
    manifest = catalog.sealed(_STEPS)[0]
    assert Replica(replica, _SITE).need().state == manifest.state
    least = {name: min(times[1:] or times) for name, times in took.items()}
    return _Point(len(catalog.contents.tiling(manifest.tiling).tiles), least)


def _start(directory: Path, encode_s: float) -> float:
    """A process from its start to its work: a real encode of a tiny version, less what that takes when warm."""
    (directory / "dcr.yaml").write_text(
        "policy: p\nstore: {url: store}\ntrainer: {state: state, layout: trainer.json, sites: [s]}\n"
        "sites: {s: {replica: replica, layout: site.json}}\n"
    )
    arguments = ("-m", "dcr_mpi", "encode", "-c", str(directory / "dcr.yaml"), "--json")
    new = str(directory / f"step-{_STEPS + 1}")
    catalog, took = Catalog(open_store(str(directory / "store")), "p", NO_KEYS), []
    for _ in range(_STARTS):
        took.append(process_s("dcr encode of a tiny version", *arguments, new))
        abort(catalog)  # the next one encodes it again
    return max(0.0, median(took) - encode_s)
