"""Publishing from inside a training program: arrays in memory, by the ranks that hold them, without a checkpoint.

    publisher = Publisher("dcr.yaml", datasets, comm=MPI.COMM_WORLD)
    publisher.start(arrays)
    for step in range(steps):
        train()
        publisher.publish(arrays, step)

Sites cannot tell such versions from those of ``dcr encode``: parts, manifest and decision are the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from . import comm as ranks_of
from .acts.anchor import anchor_due, publish_anchor
from .acts.commit import decide
from .acts.encode import make_version
from .acts.kept import Kept
from .acts.lineage import Lineage
from .acts.memory import Arrays
from .acts.offering import finish
from .acts.ports import Ports
from .acts.state import checkpoint_lanes
from .acts.tiling import load_policy
from .catalog import Catalog
from .cli.jobs import codec_settings, log_of_its_own, poll_s, serving
from .config import load
from .digest import content_sha256
from .errors import NotReady, PeerFailed, UsageError
from .events import Events
from .jsonable import dumps, loads
from .kernels import get_kernels
from .layout import check_layout, tensors_of
from .model import DatasetLayout, Layout, Manifest, Open, Policy, ShardLayout
from .signing import NOBODY, load_keyring
from .store import open_store


@dataclass(frozen=True)
class Published:
    """One version. ``committed`` None: not decided yet. Sizes in bytes, ``changed`` and ``elements`` in words."""

    version: int
    committed: bool | None
    step: int | None
    changed: int
    elements: int
    payload_bytes: int
    dense_bytes: int
    seconds: float


class Publisher:
    """The training side of a policy. Every rank of ``comm`` makes one and calls its methods together, from one thread.

    Parameters
    ----------
    config : path, or mapping of dotted keys to YAML text
        As for the command ``dcr``: policy, store, trainer.sites, codec, commit, keys and events are used.
    datasets : sequence of DatasetLayout
        What this rank holds; :mod:`dcr_mpi.layout.build` makes them: whole tensors, row and column splits, fused QKV.
        A tensor that several ranks hold must have the same bits on all of them.
    comm : mpi4py communicator or None
        None: a program of one process. It is duplicated; MPI must have been initialised.
    keep : path or None
        Folder where the baseline is kept in mapped files (twice the size of this rank's arrays), so that a program
        that is started again goes on from the last version whatever its arrays hold. None: in memory.

    Raises
    ------
    UsageError, GeometryError
        The configuration or the layout is wrong; on every rank, before anything is put.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, str],
        datasets: Sequence[DatasetLayout],
        comm: Any | None = None,
        keep: str | Path | None = None,
    ) -> None:
        self._config = load(None, config) if isinstance(config, Mapping) else load(Path(config))
        relay = self._config.relay
        patience = relay.patience_s + self._config.commit.wait_s
        self._comm = ranks_of.join(comm, relay.timeout_s, int(relay.chunk_mib * (1 << 20)), patience)
        self._broken = ""
        self._open_things = ExitStack()
        self._open_things.callback(self._comm.free)
        try:
            with self._together("begin"):
                self._open(datasets, keep)
        except BaseException:
            self._open_things.close()
            raise

    def _open(self, datasets: Sequence[DatasetLayout], keep: str | Path | None) -> None:
        where, rank, size = self._config.events.dir, self._comm.rank, self._comm.size
        keys = load_keyring(self._config.keys.file, self._config.keys.trust) if rank == 0 else NOBODY
        store = open_store(self._config.store.url, self._config.store.s3)
        kernels = get_kernels(self._config.kernels, self._config.device)
        log = Events(where, "publisher", "trainer", rank, size, self._config.events.progress_s)
        events = self._open_things.enter_context(log)
        ports = Ports(Catalog(store, self._config.policy, keys), self._comm, kernels, events)
        self._ports = self._open_things.enter_context(serving(ports, self._config))
        self._layout = self._gather(datasets)
        self._policy = Policy(self._config.policy, tensors_of(self._layout), self._layout)
        check_layout(self._layout, self._policy.tensors)
        digest = content_sha256(self._policy)
        self._kept = Kept(self._layout, rank, Path(keep) if keep is not None else None, digest)
        self._open_things.callback(self._kept.close)
        settings, sites = codec_settings(self._config), self._config.trainer.sites
        self._line = Lineage(self._ports, self._policy, digest, self._kept, settings, sites)

    def start(self, arrays: Mapping[str, Any], *, anchor: bool = True) -> int:
        """Make ``arrays`` version 0 of a new policy, or find where an existing one is: the last committed version.

        Parameters
        ----------
        arrays : mapping of dataset path to array
            This rank's datasets: numpy, or a device's with a ``get`` method (cupy). Raw bits count, so bf16 may come
            as uint16. Of an existing policy they are looked at only where the baseline is not kept.
        anchor : bool
            Publish version 0 whole, for sites to fill their replicas from.

        Raises
        ------
        BaseMismatch
            Neither the arrays nor what is kept are the last committed version.
        Conflict
            The policy exists with other tensors or another layout; or a version is sealed and undecided that this
            program cannot go on from.
        """
        with self._together("start"):
            given = Arrays(self._layout, self._comm.rank, arrays)
            born = self._ports.once("policy", lambda: dumps(self._line.is_born()))
            return self._line.go_on(given) if born == b"true" else self._line.begin(given, anchor)

    def publish(self, arrays: Mapping[str, Any], step: int | None = None, *, wait: bool = True) -> Published:
        """Publish ``arrays`` as the next version; the arrays are free again when this returns.

        Parameters
        ----------
        wait : bool
            Wait for the decision, which takes until every site has prepared it (``commit.wait_s`` and
            ``commit.on_timeout`` of the configuration). If not, the next call waits first.

        Raises
        ------
        NotReady
            Not decided in time: call :meth:`settle`, or publish again, to go on waiting.
        VerifyFailed
            Ranks hold different bits of one tensor. Nothing was published.
        Conflict
            Another publisher was there first.
        """
        self.settle()
        begun = time.monotonic()
        with self._together("publish"), log_of_its_own(self._ports, self._config, "encode", "trainer") as ports:
            slot, before = self._started()
            given = Arrays(self._layout, self._comm.rank, arrays)
            with ports.events.stage("copy"):
                self._kept.fill(1 - slot, given)
            new = self._kept.words(1 - slot)
            with ports.events.stage("check"):
                checkpoint_lanes(ports, new, self._policy.tensors, "copies", only_copied=True)
            load_policy(ports)
            raw = ports.once("opened version", lambda: dumps(self._line.announce(before)))
            opened = loads(Open, raw, "open.json")
            settings, base = codec_settings(self._config), self._kept.words(slot)
            manifest, _ = make_version(ports, self._policy, opened, before, base, new, settings, step)
            self._line.record(1 - slot, manifest)
            self._line.sealing = manifest
            with ports.events.stage("seal"):
                ports.once("manifest", lambda: self._ports.catalog.put_manifest(manifest).encode())
            self._line.pending, self._line.sealing = manifest, None
            if anchor_due(ports, before, self._config.trainer.anchor_every):
                publish_anchor(ports, self._policy, self._line.policy_sha256, before, base, settings)
        committed = self.settle() if wait else None
        m = manifest
        seconds = time.monotonic() - begun
        return Published(m.version, committed, step, m.changed, m.elements, m.payload_bytes, m.dense_bytes, seconds)

    def settle(self) -> bool | None:
        """Wait for the decision on what was published last: whether it was a commit; None where nothing is undecided.

        Raises
        ------
        NotReady
            As :meth:`publish`. It may be called again.
        """
        if self._line.sealing is not None:
            with self._together("settle"):
                self._line.recall()
        if self._line.pending is None:
            return None
        with self._together("settle"):
            manifest, commit = self._line.pending, self._config.commit
            slot, _ = self._started()
            poll = poll_s(self._config)

            def act() -> bytes:
                catalog, wait_s, then = self._ports.catalog, commit.wait_s, commit.on_timeout
                try:
                    return dumps(decide(catalog, manifest.version, wait_s=wait_s, on_timeout=then, poll_s=poll).commit)
                except NotReady as error:  # no failure of a rank: all of them hear of it, and may ask again
                    return dumps([error.what, str(error.found), str(error.expected), error.remedy])

            answer = json.loads(self._ports.once("decision", act))
            if isinstance(answer, bool):
                if self._ports.outlet is not None and self._ports.outlet.version == manifest.version:
                    finish(self._ports)
                self._line.pending = None
                if answer:
                    self._line.base = (1 - slot, manifest)
                return answer
        what, found, expected, remedy = answer
        raise NotReady(what, found=found, expected=expected, remedy=remedy)

    def close(self) -> None:
        """Give back the communicator and the log; what is undecided stays so."""
        self._open_things.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gather(self, datasets: Sequence[DatasetLayout]) -> Layout:
        """The layout of all ranks: one shard each."""
        every = self._comm.allgather(dumps(tuple(datasets)), "datasets of all ranks")
        shards = [
            ShardLayout(f"rank-{rank:05d}.h5", loads(tuple[DatasetLayout, ...], raw, f"datasets of rank {rank}"))
            for rank, raw in enumerate(every)
        ]
        return Layout("trainer", tuple(shards))

    def _started(self) -> tuple[int, Manifest]:
        if self._line.base is None:
            raise UsageError("Publisher", found="no start", expected="start() before publish()")
        return self._line.base

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """An error of one rank is every rank's: each raises, none waits for one that has left."""
        if self._broken:
            raise UsageError(
                f"Publisher.{what}",
                found=f"a publisher that failed before ({self._broken})",
                expected="a new one",
                remedy="make a new Publisher; what was published stands",
            )
        try:
            yield
        except BaseException as error:
            if self._comm.size > 1:
                self._broken = type(error).__name__
                if not isinstance(error, PeerFailed):
                    self._comm.notify(error)
            raise
