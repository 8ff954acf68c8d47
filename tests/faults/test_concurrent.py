"""Any acts at the same time, in any order of their steps, dying at any of them: what must hold after each step.

Three publishers (two of them with one record), two sites with up to two jobs each, deciders and aborters. A *silent*
job is alive, but its lease is taken for a dead one's. At the end all is run again, and must come to one state.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dcr_mpi.acts.apply import ApplyJob, apply
from dcr_mpi.acts.baseline import BaselineRecord
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.encode import encode
from dcr_mpi.acts.init import InitJob, init_policy, register_site
from dcr_mpi.acts.next_version import EncodeJob
from dcr_mpi.acts.ports import Ports
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.acts.replica import Replica
from dcr_mpi.catalog import Catalog
from dcr_mpi.comm import Solo
from dcr_mpi.errors import BaseMismatch, Conflict, CorruptInput, DcrError, NotReady, UsageError, VerifyFailed
from dcr_mpi.events import Events
from dcr_mpi.kernels import get_kernels
from dcr_mpi.model import Decision, Receipt
from dcr_mpi.store import open_store
from tests.acts.local import SMALL
from tests.faults.stage import Actor, DoorStore, Stage
from tests.world import read_all

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
SITES, PUBLISHERS, STEPS = ("s", "t"), {"A": "one", "B": "two", "C": "one"}, 6
# What an act may say where another came first; a job that was taken for dead may also find its files gone.
LOST = (NotReady, Conflict, BaseMismatch, UsageError)
Words = dict[tuple[int, str], bytes]


def _checkpoint(path: Path, step: int) -> Path:
    path.mkdir()
    draw = np.random.default_rng(step)
    for name in ("a.h5", "b.h5"):
        words = np.random.default_rng(0).integers(0, 2**16, 400, dtype=np.uint16)
        if step:
            words[draw.integers(0, 400, 40)] ^= 1
        with h5py.File(path / name, "w") as file:
            file[name[0]] = words
    return path


class Place:
    """A directory with checkpoints, store, two publishers' records and two sites; site t has no replica yet."""

    def __init__(self, path: Path, stage: Stage | None = None) -> None:
        self.path, self.stage = path, stage

    def ports(self) -> Ports:
        store = open_store(str(self.path / "store"))
        catalog = Catalog(DoorStore(store, self.stage) if self.stage is not None else store, "p")
        return Ports(catalog, Solo(), get_kernels("numba"), Events(None, "test", "s", 0, 1, 0))

    def step(self, number: int) -> Path:
        return self.path / f"step-{number}"

    def begin(self) -> None:
        for number in range(STEPS):
            _checkpoint(self.step(number), number)
        init_policy(self.ports(), InitJob(self.step(0), self.path / "one", None, SMALL))
        for site in SITES:
            register_site(self.ports(), site, None)
        create_replica(self.ports(), CreateJob("s", self.path / "s"))

    def replica(self, site: str) -> Replica:
        return Replica(self.path / site, site)

    def words(self, directory: Path) -> Words:
        return read_all(directory, self.ports().catalog.policy()[0].trainer)

    def encode(self, record: str, step: int, base: int | None) -> object:
        known = self.step(base) if base is not None else None
        return encode(self.ports(), EncodeJob(self.step(step), known, self.path / record, SITES, SMALL))

    def create(self, site: str) -> object:
        return create_replica(self.ports(), CreateJob(site, self.path / site))

    def refit(self, site: str) -> Receipt | None:
        return prepare(self.ports(), PrepareJob(site, self.path / site))

    def apply(self, site: str) -> object:
        return apply(self.ports(), ApplyJob(site, self.path / site))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("begun") / "w"
    path.mkdir()
    Place(path).begin()
    return path


def _machine(begun: Path) -> type[RuleBasedStateMachine]:
    at_zero = Place(begun)
    contents = {number: at_zero.words(at_zero.step(number)) for number in range(STEPS)}

    class Everybody(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.patches = pytest.MonkeyPatch()
            self.stage = Stage(self.patches)
            self.room = tempfile.TemporaryDirectory()
            shutil.copytree(begun, Path(self.room.name) / "w", symlinks=True)
            self.place = Place(Path(self.room.name) / "w", self.stage)
            self.still = Place(self.place.path)  # for looking: no doors
            self.decisions: dict[int, Decision] = {}
            self.contents: dict[str, Words] = {}  # by state
            self.jobs: dict[str, list[Actor]] = {}

        # -- beginnings ----------------------------------------------------------------------------------------

        def _begin(self, name: str, act: Callable[[], object], most: int) -> None:
            live = [actor for actor in self.jobs.get(name, []) if not actor.done]
            if len(live) < most:
                self.jobs[name] = [*live, self.stage.start(name, act)]

        @rule(who=st.sampled_from(sorted(PUBLISHERS)), step=st.integers(1, STEPS - 1), own=st.booleans())
        def publish(self, who: str, step: int, own: bool) -> None:
            base = None if own and PUBLISHERS[who] == "one" else self._committed_step()
            self._begin(who, lambda: self.place.encode(PUBLISHERS[who], step, base), 1)

        @rule(site=st.sampled_from(SITES))
        def refit(self, site: str) -> None:
            self._begin(site, lambda: self.place.refit(site), 2)

        @rule(site=st.sampled_from(SITES))
        def apply(self, site: str) -> None:
            self._begin(site, lambda: self.place.apply(site), 2)

        @rule(site=st.sampled_from(SITES))
        def create(self, site: str) -> None:
            self._begin(site, lambda: self.place.create(site), 2)

        @rule(sites=st.sampled_from([("s",), ("s", "t"), ()]))
        def decide(self, sites: tuple[str, ...]) -> None:
            self._begin("decide", lambda: decide(self.place.ports().catalog, sites=sites, wait_s=0), 2)

        @rule()
        def abort(self) -> None:
            self._begin("abort", lambda: self._abort(self.place), 1)

        @staticmethod
        def _abort(place: Place) -> object:
            return abort(place.ports().catalog, reason="test") if place.ports().catalog.last_opened() else None

        # -- a quiet course --------------------------------------------------------------------------------------

        @initialize(acts=st.integers(0, 12), step=st.integers(1, STEPS - 1))
        def already(self, acts: int, step: int) -> None:
            """What went before anybody died: states that chance alone would seldom come to."""
            place = self.still
            course: list[Callable[[], object]] = [
                lambda: place.create("t"),
                lambda: place.encode("one", step, None),
                lambda: place.refit("s"),
                lambda: place.refit("t"),
                lambda: decide(place.ports().catalog, wait_s=0),
                lambda: place.apply("s"),
                lambda: place.encode("one", 1 + step % (STEPS - 1), None),
                lambda: place.refit("s"),
                lambda: place.apply("t"),
                lambda: decide(place.ports().catalog, sites=["s"], wait_s=0),
                lambda: place.apply("s"),
                lambda: place.refit("t"),
            ]
            for act in course[:acts]:
                act()

        # -- going on ------------------------------------------------------------------------------------------

        @precondition(lambda self: self.stage.running)
        @rule(which=st.integers(0, 9), doors=st.integers(1, 40))
        def go_on(self, which: int, doors: int) -> None:
            self._pick(which).step(doors)

        @precondition(lambda self: self.stage.running)
        @rule(which=st.integers(0, 9))
        def finish(self, which: int) -> None:
            self._pick(which).finish()

        @precondition(lambda self: self.stage.running)
        @rule(which=st.integers(0, 9), doors=st.integers(0, 40))
        def kill(self, which: int, doors: int) -> None:
            actor = self._pick(which)
            actor.step(doors)
            actor.kill()

        @precondition(lambda self: self.stage.running)
        @rule(which=st.integers(0, 9), doors=st.integers(0, 40))
        def silence(self, which: int, doors: int) -> None:
            actor = self._pick(which)
            actor.step(doors)
            actor.silent = True

        @rule(site=st.sampled_from(SITES), act=st.sampled_from(["refit", "apply"]), doors=st.integers(10, 80))
        def overtake(self, site: str, act: str, doors: int) -> None:
            """A job is silent in the midst of its work while all that it was about, and one more version, is done."""
            self._begin(site, lambda: getattr(self.place, act)(site), 2)
            late = self.jobs[site][-1]
            late.step(doors)
            late.silent = True
            with suppress(*LOST):  # others are at work there
                self._forward(site)
                self.still.encode("two", 1 + self._committed_step() % (STEPS - 1), self._committed_step())
                self.still.refit(site)
                decide(self.still.ports().catalog, sites=[site], wait_s=0)
                self.still.apply(site)

        def _pick(self, which: int) -> Actor:
            return self.stage.running[which % len(self.stage.running)]

        # -- what must hold ------------------------------------------------------------------------------------

        @invariant()
        def nobody_fails_strangely(self) -> None:
            for actor in self.stage.actors:
                allowed = (*LOST, CorruptInput, VerifyFailed) if actor.silent else LOST
                if actor.error is not None and not isinstance(actor.error, allowed):
                    raise AssertionError(f"{actor.name} failed") from actor.error

        @invariant()
        def one_decision_that_never_changes(self) -> None:
            catalog = self.still.ports().catalog
            for version in range(catalog.last_opened() + 1):
                found = catalog.decision(version)
                if version in self.decisions:
                    assert found == self.decisions[version]
                elif found is not None:
                    self.decisions[version] = found
                elif version < catalog.last_opened():
                    raise AssertionError(f"version {version + 1} is opened, version {version} is not decided")

        @invariant()
        def replicas_are_what_they_say(self) -> None:
            catalog = self.still.ports().catalog
            for site in SITES:
                replica = self.still.replica(site)
                record = replica.record()
                if record is None:
                    continue
                manifest, digest = catalog.sealed(record.version)
                assert self._committed(record.version, digest)
                assert record.state == manifest.state
                if record.applying is None:
                    assert self.still.words(replica.directory) == self._words(record.version)
                else:
                    assert self._committed(record.applying, catalog.sealed(record.applying)[1])
                    assert replica.sealed(record.applying) is not None, "words are being written without a journal"

        @invariant()
        def baselines_are_committed(self) -> None:
            catalog = self.still.ports().catalog
            for name in set(PUBLISHERS.values()):
                found = BaselineRecord(self.still.path / name).baseline()
                if found is not None:
                    manifest, digest = catalog.sealed(found.version)
                    assert self._committed(found.version, digest)
                    assert found.state == manifest.state

        def _committed(self, version: int, manifest_sha: str) -> bool:
            decision = self.still.ports().catalog.decision(version)
            return decision is not None and decision.commit and decision.manifest_sha256 in ("", manifest_sha)

        def _words(self, version: int) -> Words:
            """The words that a version has, by its publisher's own shards: independent of the way that they came."""
            return contents[self._step_of(version)]

        def _step_of(self, version: int) -> int:
            state = self.still.ports().catalog.sealed(version)[0].state
            return next(number for number, known in _states(begun).items() if known == state)

        def _committed_step(self) -> int:
            catalog = self.still.ports().catalog
            return self._step_of(catalog.last_committed(catalog.last_opened())[0].version)

        # -- the end -------------------------------------------------------------------------------------------

        def teardown(self) -> None:
            try:
                for actor in self.stage.running:
                    actor.finish()
                self.nobody_fails_strangely()
                self._run_again()
            finally:
                self.stage.close()
                self.patches.undo()
                self.room.cleanup()

        def _run_again(self) -> None:
            """Undisturbed: what is under way is brought to its end, then one more version goes everywhere."""
            place, catalog = self.still, self.still.ports().catalog
            for site in SITES:
                self._forward(site)
            newest = catalog.last_opened()
            if catalog.decision(newest) is None:
                if catalog.manifest(newest) is None:
                    abort(catalog, newest, "never sealed")
                else:
                    assert decide(catalog, newest, wait_s=0).commit, "every site has prepared it"
            for site in SITES:
                self._forward(site)
            place.encode("two", 1 + (self._committed_step() % (STEPS - 1)), self._committed_step())
            for site in SITES:
                assert place.refit(site) is not None
            assert decide(catalog, wait_s=0).commit
            for site in SITES:
                place.apply(site)
            last = catalog.last_committed(catalog.last_opened())[0].version
            for site in SITES:
                record = place.replica(site).need()
                assert (record.version, record.applying) == (last, None)
                assert place.words(place.path / site) == self._words(last)
                assert not list(place.replica(site).work.glob("v*")), "journals are gone"
                assert not list((place.path / site).glob(".dcr-new-*")), "and half-made shards too"

        def _forward(self, site: str) -> None:
            """As far as decisions go."""
            place = self.still
            if place.replica(site).record() is None:
                place.create(site)
            while True:
                with suppress(NotReady):  # undecided, or nothing prepared
                    place.apply(site)
                try:
                    receipt = place.refit(site)
                except NotReady:  # opened, not sealed
                    return
                if receipt is None or place.ports().catalog.decision(receipt.version) is None:
                    return

    return Everybody


_KNOWN: dict[Path, dict[int, str]] = {}


def _states(begun: Path) -> dict[int, str]:
    """The state digest of each step, made once by encoding it in a place of its own."""
    if begun not in _KNOWN:
        _KNOWN[begun] = dict(_encode_all(begun))
    return _KNOWN[begun]


def _encode_all(begun: Path) -> Iterator[tuple[int, str]]:
    yield 0, Place(begun).ports().catalog.sealed(0)[0].state
    for number in range(1, STEPS):
        with tempfile.TemporaryDirectory() as room:
            shutil.copytree(begun, Path(room) / "w")
            place = Place(Path(room) / "w")
            place.encode("two", number, 0)
            yield number, place.ports().catalog.sealed(1)[0].state


def _run(begun: Path, examples: int, steps: int) -> None:
    _states(begun)
    told = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(_machine(begun), settings=told)


def test_everybody_at_once(begun: Path) -> None:
    _run(begun, 6, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_everybody_at_once_for_long(begun: Path) -> None:
    _run(begun, 600, 60)


def test_a_death_is_not_caught(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage itself: an actor that dies at each of its doors in turn leaves no door passed after it."""
    stage = Stage(monkeypatch)
    shutil.copytree(begun, tmp_path / "w")
    place = Place(tmp_path / "w", stage)
    Place(tmp_path / "w").encode("two", 1, 0)
    deaths = 0
    while True:
        actor = stage.start("refit", lambda: place.refit("s"))
        actor.step(deaths)
        if actor.done:
            break
        doors = len(actor.doors)
        actor.kill()
        assert len(actor.doors) == doors
        assert actor.error is None
        deaths += 1
    assert deaths > 30
    assert actor.error is None, "every earlier death has left what this run could go on from"
    with pytest.raises(DcrError):
        place.apply("s")
