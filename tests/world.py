"""A whole small world for tests: trainer, store and sites in a directory, driven through the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.launcher import Launcher, find_all
from dcr_mpi.acts.replica import Replica
from dcr_mpi.checkpoint import Checkpoint
from dcr_mpi.cli import main
from dcr_mpi.dtypes import dtype
from dcr_mpi.jsonable import loads
from dcr_mpi.layout import Place
from dcr_mpi.model import Box, Layout
from dcr_mpi.synth import TINY, trainer_layout

LAUNCHERS = {launcher.kind: launcher for launcher in find_all()}
ROOT = Path(__file__).parent.parent

# Small enough that the tiny model has several parts, blocks and buckets.
CODEC = "{block: 256, bucket_mib: 0.004, part_mib: 0.008}"


@dataclass
class Done:
    """One finished command."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out.strip().splitlines()[-1])


@dataclass
class World:
    """``path`` holds everything; sites all use the engine layout of the synthetic model.

    The kernels are the reference ones: for a tiny model they are faster than loading the compiled ones each time.
    """

    path: Path
    launcher: Launcher
    store: str = ""
    sites: tuple[str, ...] = ("rollout",)
    env: dict[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    size: str = "tiny"
    kernels: str = "numpy"
    timeout_s: float = 60

    def __post_init__(self) -> None:
        self.config = self.path / "dcr.yaml"
        sites = "".join(f"  {s}: {{replica: replica-{s}, layout: model/layouts/site.json}}\n" for s in self.sites)
        self.config.write_text(
            f"policy: test\nstore:\n  url: {self.store or self.path / 'store'}\n"
            f"  s3: {{endpoint: {self.endpoint or 'null'}}}\n"
            f"trainer: {{state: state, layout: model/layouts/trainer.json, sites: [{', '.join(self.sites)}]}}\n"
            f"sites:\n{sites}codec: {CODEC}\nrelay: {{timeout_s: 20, chunk_mib: 0.001}}\ncommit: {{wait_s: 5}}\n"
            f"events: {{dir: events}}\nkernels: {self.kernels}\n"
        )

    def command(self, ranks: int, *arguments: str) -> list[str]:
        common = [] if arguments[0] in ("synth", "inspect", "keygen") else ["--config", str(self.config)]
        return self.launcher.command(ranks, *arguments, *common, "--json")

    def environment(self) -> dict[str, str]:
        python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        return {**self.launcher.environment(), "PYTHONPATH": python, **self.env}

    def run(self, ranks: int, *arguments: str, before: tuple[str, ...] = ()) -> Done:
        """Run a command, whatever comes of it; ``before`` is put in front of the whole command line."""
        done = subprocess.run(
            [*before, *self.command(ranks, *arguments)], env=self.environment(), cwd=self.path, text=True,
            capture_output=True, timeout=self.timeout_s, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def dcr(self, ranks: int, *arguments: str) -> dict[str, Any]:
        """Run a command that must succeed; its JSON."""
        return _must(self.run(ranks, *arguments), arguments).json

    def here(self, *arguments: str) -> Done:
        """One rank's command in this process, see :func:`here`."""
        argv = self.command(1, *arguments)
        return here(self, *argv[argv.index("dcr_mpi") + 1 :])

    def synth(self, step: int, *more: str) -> Path:
        synth = ("synth", str(self.path / "model"), "--step", str(step), "--size", self.size, *more)
        return Path(_must(self.here(*synth), synth).json["directory"])

    def begin(self, ranks: int = 1) -> None:
        """Version 0 and every site's replica of it."""
        here = ranks == 1 and not self.env  # which this process does not have
        for what in (("--checkpoint", str(self.synth(0))), *(("--site", site) for site in self.sites)):
            init = ("init", *what)
            _must(self.here(*init) if here else self.run(ranks, *init), init)

    def encode(self, step: int, ranks: int = 1) -> dict[str, Any]:
        return self.dcr(ranks, "encode", str(self.synth(step)))

    def cycle(self, step: int, train_ranks: int = 1, site_ranks: int = 1) -> dict[str, Any]:
        """One version everywhere, verified; encode's receipt."""
        sealed = self.encode(step, train_ranks)
        for site in self.sites:
            self.dcr(site_ranks, "refit", "--site", site)
        self.dcr(1, "commit")
        for site in self.sites:
            self.dcr(site_ranks, "apply", "--site", site)
            assert self.dcr(site_ranks, "verify", "--site", site)["state"] == sealed["state"]
        return sealed

    def events(self, act: str, since: Mapping[str, int] = {}) -> list[dict[str, Any]]:
        """What all ranks logged of an act, after the first ``since`` lines of each log."""
        logs = sorted((self.path / "events").glob(f"{act}-*.jsonl"))
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()[since.get(log.name, 0) :]]

    def replica(self, site: str = "rollout") -> Replica:
        return Replica(self.path / f"replica-{site}", site)

    def site_layout(self) -> Layout:
        return loads(Layout, (self.path / "model/layouts/site.json").read_bytes(), "layout")

    def words(self, site: str = "rollout") -> dict[tuple[int, str], bytes]:
        """Every byte of every dataset of a replica, padding included."""
        return read_all(self.replica(site).directory, self.site_layout())

    def full_transfer(self, step: int) -> dict[tuple[int, str], bytes]:
        """What a full transfer of a step would leave at a site, by independent means: see :func:`scatter_full`."""
        return scatter_full(self.path / f"model/step-{step:06d}", trainer_layout(TINY), self.site_layout())


def _must(done: Done, arguments: tuple[str, ...]) -> Done:
    assert done.code == 0, f"{arguments}: exit code {done.code}\n{done.error}"
    return done


def here(world: World, *arguments: str) -> Done:
    """A command typed in the world's directory, in this process, where it starts at once: for many small ones, and for
    what a test builds on.
    """
    out, error = io.StringIO(), io.StringIO()
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.chdir(world.path):
            code = main(arguments)
    except SystemExit as leaving:  # argparse
        code = int(leaving.code or 0)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return Done(code, out.getvalue(), error.getvalue())


def wait_for(path: Path, within_s: float = 120.0) -> bytes:
    """What a file holds, once it is there."""
    give_up = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < give_up, f"no {path}"
        time.sleep(0.05)
    return path.read_bytes()


def read_all(directory: Path, layout: Layout, dtypes: Mapping[str, str] = {}) -> dict[tuple[int, str], bytes]:
    """Bytes of every dataset under a layout."""
    out = {}
    with Checkpoint(directory, layout, dtypes=dtypes) as checkpoint:
        for number, shard in enumerate(layout.shards):
            for dataset in shard.datasets:
                kind, box = dtype(dataset.dtype), Box.whole(dataset.shape)
                words = np.empty(box.size * kind.words, f"u{kind.word_bytes}")
                checkpoint.read(Place(number, dataset.path, box), 0, len(words), words)
                out[number, dataset.path] = words.tobytes()
    return out


def scatter_full(source: Path, trainer: Layout, site: Layout) -> dict[tuple[int, str], bytes]:
    """Copy a checkpoint into a site's layout with numpy slices of whole tensors: no code of the refit is used.

    Padding is zero, as in a new replica.
    """
    tensors: dict[str, np.ndarray] = {}
    for shard in trainer.shards:
        with h5py.File(source / shard.file) as file:
            for dataset in shard.datasets:
                words = raw_words(file[dataset.path], dataset.dtype)
                for piece in dataset.pieces:
                    whole = tensors.setdefault(piece.tensor, np.zeros(_shape(trainer, piece.tensor), words.dtype))
                    whole[_slices(piece.canonical)] = words[_slices(piece.local)].reshape(piece.canonical.shape)
    out = {}
    for number, shard in enumerate(site.shards):
        for dataset in shard.datasets:
            words = np.zeros(dataset.shape, f"u{dtype(dataset.dtype).word_bytes}")
            for piece in dataset.pieces:
                words[_slices(piece.local)] = tensors[piece.tensor][_slices(piece.canonical)].reshape(piece.local.shape)
            out[number, dataset.path] = words.tobytes()
    return out


def raw_words(dataset: h5py.Dataset, name: str) -> np.ndarray:
    """A contiguous dataset's raw words, read straight from the file at the offset that HDF5 tells."""
    kind = dtype(name)
    words = np.fromfile(
        dataset.file.filename, f"u{kind.word_bytes}", dataset.size * kind.words, offset=dataset.id.get_offset()
    )
    return words.reshape(dataset.shape)


def _shape(layout: Layout, tensor: str) -> tuple[int, ...]:
    stops = [p.canonical.stop for s in layout.shards for d in s.datasets for p in d.pieces if p.tensor == tensor]
    return tuple(max(axis) for axis in zip(*stops, strict=True))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
