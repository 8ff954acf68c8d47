"""A publisher in a program of one process: what it takes, what it keeps, and what a site makes of its versions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.acts.apply import ApplyJob, apply
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.init import register_site
from dcr_mpi.acts.ports import Ports
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.catalog import Catalog
from dcr_mpi.comm import Solo
from dcr_mpi.direct import Inlet, Reach
from dcr_mpi.errors import BaseMismatch, Conflict, GeometryError, NotReady, StoreUnavailable, UsageError
from dcr_mpi.events import Events
from dcr_mpi.kernels import get_kernels
from dcr_mpi.layout import build
from dcr_mpi.model import DatasetLayout
from dcr_mpi.publisher import Publisher
from dcr_mpi.store import open_store
from tests.world import read_all

DATASETS = (
    build.whole("w", (300, 70), "bf16"),
    build.fused("qk", [("q", (8, 20)), ("k", (4, 20))], "f32", 0, 1, 0),
    build.whole("flags", (3,), "bool"),
    build.whole("steps", (), "i64"),
    build.whole("z", (5, 2), "raw16"),
)


class OnDevice:
    """An array that the processor cannot read but through ``get``; it notes what was fetched at once."""

    def __init__(self, array: np.ndarray, fetched: list[int]) -> None:
        self._array, self._fetched = array, fetched
        self.shape, self.dtype, self.flags = array.shape, array.dtype, array.flags

    def reshape(self, *shape: int) -> OnDevice:
        return OnDevice(self._array.reshape(*shape), self._fetched)

    def view(self, kind: Any) -> OnDevice:
        return OnDevice(self._array.view(kind), self._fetched)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: slice) -> OnDevice:
        return OnDevice(self._array[key], self._fetched)

    @property
    def itemsize(self) -> int:
        return self._array.itemsize

    def get(self) -> np.ndarray:
        self._fetched.append(self._array.nbytes)
        return self._array.copy()


class Program:
    """A training program, and a site ("s") beside it."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        self.settings = {
            "policy": "p", "store.url": str(path / "store"), "trainer.sites": "[s]", "commit.wait_s": "0.2",
            "codec.block": "64", "codec.part_mib": "0.002", "codec.bucket_mib": "0.001", **settings,
        }  # fmt: skip
        catalog = Catalog(open_store(str(path / "store")), "p")
        self.site = Ports(catalog, Solo(), get_kernels("numba"), Events(None, "test", "s", 0, 1, 0))
        random = np.random.default_rng(5)
        self.arrays: dict[str, Any] = {
            "w": random.integers(0, 1 << 16, (300, 70), np.uint16),
            "qk": random.normal(size=(12, 20)).astype(np.float32),
            "flags": np.array([True, False, True]),
            "steps": np.array(0),
            "z": random.normal(size=(5, 2)) + 1j,
        }

    def publisher(self, keep: Path | None = None, datasets: tuple[DatasetLayout, ...] = DATASETS) -> Publisher:
        return Publisher(self.settings, datasets, keep=keep)

    def train(self) -> None:
        self.arrays["w"].reshape(-1)[:: len(self.arrays["w"]) // 7] ^= 3
        self.arrays["qk"][2] = -self.arrays["qk"][2]
        self.arrays["flags"] ^= True
        self.arrays["steps"] += 1
        self.arrays["z"][1, 1] *= 2

    def join(self) -> None:
        register_site(self.site, "s", None)
        create_replica(self.site, CreateJob("s", self.path / "replica"))

    def take(self, version: int) -> None:
        prepare(self.site, PrepareJob("s", self.path / "replica", version))
        decide(self.site.catalog, version, wait_s=1)
        apply(self.site, ApplyJob("s", self.path / "replica", version))

    def check(self) -> None:
        """The replica has every bit that the arrays have."""
        policy, _ = self.site.catalog.policy()
        words = read_all(self.path / "replica", policy.trainer)
        assert words == {(0, name): array.tobytes() for name, array in self.arrays.items()}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_versions_one_after_another(program: Program) -> None:
    with program.publisher() as publisher:
        assert publisher.start(program.arrays) == 0
        program.join()
        for version in (1, 2, 3):
            program.train()
            found = publisher.publish(program.arrays, wait=False)
            assert (found.version, found.committed) == (version, None)
            program.take(version)
            program.check()
        assert publisher.settle() is True and publisher.settle() is None


def test_nothing_of_the_arrays_is_kept(program: Program) -> None:
    with program.publisher() as publisher:
        publisher.start(program.arrays)
        program.join()
        for version in (1, 2):
            program.train()
            wanted = {name: array.copy() for name, array in program.arrays.items()}
            publisher.publish(program.arrays, wait=False)
            for array in program.arrays.values():
                array.fill(1)
            program.take(version)
            program.arrays = wanted
            program.check()


def test_arrays_of_a_device(program: Program) -> None:
    fetched: list[int] = []
    with program.publisher() as publisher:
        publisher.start({name: OnDevice(array, fetched) for name, array in program.arrays.items()})
        program.join()
        program.train()
        fetched.clear()
        publisher.publish({name: OnDevice(array, fetched) for name, array in program.arrays.items()}, wait=False)
        assert sum(fetched) == sum(array.nbytes for array in program.arrays.values()), "each word leaves it once"
        program.take(1)
    program.check()


def test_an_aborted_version_changes_no_baseline(program: Program) -> None:
    with program.publisher() as publisher:
        publisher.start(program.arrays)
        program.join()
        program.train()
        publisher.publish(program.arrays, wait=False)
        abort(program.site.catalog)
        assert publisher.settle() is False
        program.train()
        assert publisher.publish(program.arrays, wait=False).version == 2
        program.take(2)
    program.check()


def test_a_decision_that_does_not_come(program: Program) -> None:
    """It may be waited for again; nothing else is published meanwhile."""
    with program.publisher() as publisher:
        publisher.start(program.arrays)
        program.join()
        program.train()
        with pytest.raises(NotReady, match="prepared receipt of site 's'"):
            publisher.publish(program.arrays)
        with pytest.raises(NotReady, match="prepared receipt of site 's'"):
            publisher.publish(program.arrays)
        assert program.site.catalog.opened(2) is None
        program.take(1)
        assert publisher.settle() is True
    program.check()


def test_started_again(program: Program, tmp_path: Path) -> None:
    with program.publisher() as publisher:
        publisher.start(program.arrays)
    program.join()
    with program.publisher() as publisher:
        assert publisher.start(program.arrays) == 0
        program.train()
        publisher.publish(program.arrays, wait=False)
    program.take(1)
    with program.publisher() as publisher:
        assert publisher.start(program.arrays) == 1
    program.train()
    with program.publisher() as publisher, pytest.raises(BaseMismatch, match="keep the baseline"):
        publisher.start(program.arrays)
    with program.publisher() as publisher, pytest.raises(UsageError, match="start"):
        publisher.publish(program.arrays)


@pytest.mark.parametrize("committed", [True, False])
def test_what_is_kept_outlives_the_program(program: Program, tmp_path: Path, committed: bool) -> None:
    """Even with a version under way: it is waited for, and the next one is made from what was decided."""
    keep = tmp_path / "kept"
    with program.publisher(keep) as publisher:
        publisher.start(program.arrays)
        program.join()
        program.train()
        publisher.publish(program.arrays, wait=False)
    program.train()
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0
        if committed:
            program.take(1)
        else:
            abort(program.site.catalog)
        assert publisher.publish(program.arrays, wait=False).version == 2
    program.take(2)
    program.check()


def test_kept_words_that_were_changed_are_no_baseline(program: Program, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    with program.publisher(keep) as publisher:
        publisher.start(program.arrays)
    (held,) = list(keep.glob("*.json"))
    words = held.with_suffix(".words")
    raw = bytearray(words.read_bytes())
    raw[10] ^= 1
    words.write_bytes(raw)
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0, "the arrays are that version"
    words.write_bytes(raw)
    held.write_bytes(b"{")
    program.train()
    with program.publisher(keep) as publisher, pytest.raises(BaseMismatch):
        publisher.start(program.arrays)


def test_a_kept_baseline_is_one_programs(program: Program, tmp_path: Path) -> None:
    """A requeued job and one that was submitted again, at once; and policies that share a folder."""
    keep = tmp_path / "kept"
    with program.publisher(keep) as publisher:
        publisher.start(program.arrays)
        with pytest.raises(Conflict, match="another process"):
            program.publisher(keep)
        program.settings["policy"] = "other"
        fewer = {name: array for name, array in program.arrays.items() if name != "w"}
        with program.publisher(keep, DATASETS[1:]) as other:
            other.start(fewer)
        program.settings["policy"] = "p"
        program.join()
        program.train()
        publisher.publish(program.arrays, wait=False)
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0


def test_a_refused_start_leaves_what_is_kept(program: Program, tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    with program.publisher(keep) as publisher:
        publisher.start(program.arrays)
    with program.publisher(keep, DATASETS[:-1]) as publisher, pytest.raises(Conflict, match="other tensors"):
        publisher.start({name: array for name, array in program.arrays.items() if name != "z"})
    program.train()
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0


@pytest.mark.parametrize("act", ["put_manifest", "put_decision"])
@pytest.mark.parametrize("done", [False, True])
def test_a_start_that_was_cut_off_goes_on(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, done: bool
) -> None:
    """Before or after it was put, and with other arrays the next time: version 0 is what was begun."""
    begun = {name: array.copy() for name, array in program.arrays.items()}
    keep, put = tmp_path / "kept", getattr(Catalog, act)

    def cut(catalog: Catalog, *arguments: Any, **more: Any) -> Any:
        if done:
            put(catalog, *arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, program.publisher(keep) as publisher:
        patched.setattr(Catalog, act, cut)
        with pytest.raises(KeyboardInterrupt):
            publisher.start(program.arrays)
    if act == "put_decision" or done:
        program.train()
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0
        program.join()
        program.arrays, trained = begun, program.arrays
        program.check()
        program.arrays = trained
        program.train()
        publisher.publish(program.arrays, wait=False)
        program.take(1)
        program.check()


@pytest.mark.parametrize("done", [False, True])
def test_an_error_while_a_version_is_sealed(program: Program, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """The answer may be lost: what the store has is found out before anything is written over."""
    put = Catalog.put_manifest

    def lost(catalog: Catalog, *arguments: Any, **more: Any) -> Any:
        if done:
            put(catalog, *arguments, **more)
        raise StoreUnavailable("put", found="no answer")

    with program.publisher() as publisher:
        publisher.start(program.arrays)
        program.join()
        program.train()
        with monkeypatch.context() as patched:
            patched.setattr(Catalog, "put_manifest", lost)
            with pytest.raises(StoreUnavailable):
                publisher.publish(program.arrays, wait=False)
        if done:
            program.take(1)
            program.check()
        program.train()
        version = publisher.publish(program.arrays, wait=False).version
        assert version == (2 if done else 1)
        program.take(version)
    program.check()


def test_a_version_under_way_is_served_again(tmp_path: Path) -> None:
    """By the direct relay, with no copy in the store: who is started again has all that the parts were made from."""
    direct = {"relay.transport": "direct", "direct.listen": "127.0.0.1", "direct.store": "never"}
    program, keep = Program(tmp_path, **direct), tmp_path / "kept"
    with program.publisher(keep) as publisher:
        publisher.start(program.arrays)
        program.join()
        program.train()
        publisher.publish(program.arrays, wait=False)
    inlet = Inlet(Reach(2.0, 5.0, 5.0, 10.0))
    program.site = dataclasses.replace(program.site, inlet=inlet)
    trained = {name: array.copy() for name, array in program.arrays.items()}
    program.train()
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 0
        program.take(1)
        assert publisher.settle() is True
    inlet.close()
    program.arrays = trained
    program.check()
    assert not list((tmp_path / "store/p/versions").glob("*/parts/*"))


def test_killed_before_the_copy_to_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed and is not in the store is there as an anchor once the next version is."""
    direct = {"relay.transport": "direct", "direct.listen": "127.0.0.1", "direct.store": "after"}
    program, keep = Program(tmp_path, **direct), tmp_path / "kept"
    inlet = Inlet(Reach(2.0, 5.0, 5.0, 10.0))
    program.site = dataclasses.replace(program.site, inlet=inlet)
    with monkeypatch.context() as patched, program.publisher(keep) as publisher:
        patched.setattr("dcr_mpi.publisher.finish", lambda _: 1 / 0)
        publisher.start(program.arrays)
        program.join()
        program.train()
        publisher.publish(program.arrays, wait=False)
        program.take(1)
        with pytest.raises(ZeroDivisionError):
            publisher.settle()
    program.train()
    with program.publisher(keep) as publisher:
        assert publisher.start(program.arrays) == 1
        publisher.publish(program.arrays, wait=False)
        program.take(2)
        assert publisher.settle() is True
    inlet.close()
    program.check()
    assert program.site.catalog.has_anchor(1)
    create_replica(program.site, CreateJob("s", tmp_path / "another"))


def test_another_publisher(program: Program) -> None:
    with program.publisher() as first, program.publisher() as second:
        first.start(program.arrays)
        second.start(program.arrays)
        program.join()
        program.train()
        first.publish(program.arrays, wait=False)
        with pytest.raises(Conflict, match="one program publishes a policy at a time"):
            second.publish(program.arrays, wait=False)
        program.take(1)
        with pytest.raises(Conflict, match="one program publishes a policy at a time"):
            second.publish(program.arrays, wait=False)
    program.check()


def test_another_model(program: Program) -> None:
    with program.publisher() as publisher:
        publisher.start(program.arrays)
    with program.publisher(datasets=DATASETS[:-1]) as publisher, pytest.raises(Conflict, match="other tensors"):
        publisher.start({name: array for name, array in program.arrays.items() if name != "z"})


def test_arrays_that_do_not_fit(program: Program) -> None:
    with program.publisher() as publisher:
        good = program.arrays
        for wrong, words in (
            ({**good, "w": good["w"].T.copy()}, "expected bf16 .300, 70."),
            ({**good, "w": good["w"].astype(np.uint32)}, "found uint32"),
            ({**good, "qk": np.asfortranarray(good["qk"])}, "not contiguous"),
            ({name: array for name, array in good.items() if name != "w"}, "1 missing"),
            ({**good, "more": good["w"]}, "1 unknown"),
        ):
            with pytest.raises(GeometryError, match=words):
                publisher.start(wrong)
        assert publisher.start(good) == 0
