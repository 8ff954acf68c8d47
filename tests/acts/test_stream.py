"""A version is fetched, decoded and journalled while it is being encoded."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.acts import prepare as prepare_module
from dcr_mpi.acts import publish as publish_module
from dcr_mpi.acts import stream
from dcr_mpi.acts.commit import abort
from dcr_mpi.acts.parts import PartBuilder, share
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.acts.stream import Turn, announced, is_announced
from dcr_mpi.digest import sha256
from dcr_mpi.errors import Conflict, CorruptInput, DcrError, NotReady, Overtaken
from dcr_mpi.jsonable import dumps
from dcr_mpi.model import Receipt
from tests.acts.local import Local
from tests.acts.tiny import SITE, TRAINER, full, write_steps

POLL = (0.002, 0.02)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_steps(tmp_path_factory.mktemp("steps"), 4)


@pytest.fixture
def local(tmp_path: Path, steps: list[Path]) -> Local:
    made = Local(tmp_path, TRAINER, SITE)
    made.begin(steps[0])
    return made


class Course:
    """The publisher and the site at the same time; the publisher stands before part ``at`` until it is let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.stands, self.go, self.fails = threading.Event(), threading.Event(), False
        build = PartBuilder.build

        def slow(builder: PartBuilder, index: int) -> Any:
            if index == at:
                self.stands.set()
                assert self.go.wait(60)
                if self.fails:
                    raise MemoryError("the publisher dies")
            return build(builder, index)

        monkeypatch.setattr(PartBuilder, "build", slow)

    def begin(self, act: Callable[[], object]) -> Begun:
        return Begun(act)


class Begun:
    """An act in a thread of its own."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act, self.result, self.error = act, None, None  # type: tuple[Callable[[], object], Any, Any]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._act()
        except BaseException as error:
            self.error = error

    def end(self) -> Any:
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def _follow(local: Local, wait_s: float = 60.0) -> Receipt | None:
    return prepare(local.site_ports, PrepareJob("s", local.replica.directory, wait_s=wait_s, poll_s=POLL, window=2))


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The parts that were fetched, in order."""
    parts: list[int] = []
    whole = stream.fetch

    def fetch(catalog: Any, version: int, index: int, *rest: Any) -> bytes:
        data = whole(catalog, version, index, *rest)
        parts.append(index)
        return data

    monkeypatch.setattr(prepare_module, "fetch_announced", fetch)
    return parts


def _until(what: Callable[[], bool]) -> None:
    for _ in range(3000):
        if what():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came to that")


def test_parts_land_while_later_ones_are_encoded(
    local: Local, steps: list[Path], landed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=6)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: _follow(local))
    _until(lambda: {0, 1, 2, 3} <= set(landed))  # the encoder stands before part 6; its uploads run two behind
    assert local.ports.catalog.manifest(1) is None
    course.go.set()
    sealed, prepared = encoding.end(), preparing.end()
    assert prepared.manifest_sha256 == sealed.manifest_sha256
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])
    assert sorted(landed) == list(range(sealed.detail["parts"])), "each once"


def test_the_site_may_begin_before_anything_is_announced(local: Local, steps: list[Path], landed: list[int]) -> None:
    preparing = Begun(lambda: _follow(local))
    sealed = local.encode(steps[1])
    assert preparing.end().manifest_sha256 == sealed.manifest_sha256
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_one_thread_at_a_time_asks_for_what_is_not_there_yet(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it only asks whether it is there, from the second time on."""
    course, looks, gets = Course(monkeypatch, at=2), Counter[int](), Counter[int]()

    def asked(catalog: Any, version: int, index: int) -> bool:
        looks[index] += 1
        return is_announced(catalog, version, index)

    def got(catalog: Any, version: int, index: int) -> Any:
        gets[index] += 1
        return announced(catalog, version, index)

    monkeypatch.setattr(stream, "is_announced", asked)
    monkeypatch.setattr(stream, "announced", got)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: _follow(local))
    _until(lambda: max(looks.values(), default=0) > 20)
    assert sum(count > 2 for count in looks.values()) == 1, "of the two parts in hand"
    assert max(gets.values()) < max(looks.values()) / 4
    course.go.set()
    assert preparing.end().manifest_sha256 == encoding.end().manifest_sha256


def test_a_part_that_comes_soon_costs_no_question_for_a_decision(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = local.encode(steps[1]).detail["parts"]
    store, asked = local.ports.catalog.store, list[str]()
    whole = type(store).stat

    def stat(self: Any, key: str) -> Any:
        asked.append(key)
        return whole(self, key)

    monkeypatch.setattr(type(store), "stat", stat)
    for index in range(parts):
        assert stream.fetch(local.ports.catalog, 1, index, 1 << 30, 60.0, POLL, stream.Turn())
    assert asked == []


def test_without_waiting_a_version_that_is_being_encoded_is_not_ready(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=2)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    with pytest.raises(NotReady, match="being encoded"):
        _follow(local, wait_s=0)
    course.go.set()
    encoding.end()


def test_a_publisher_that_dies_and_comes_back(
    local: Local, steps: list[Path], landed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site gives up in time; what it has counts when the publisher is back."""
    course = Course(monkeypatch, at=6)
    course.fails = True
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    course.go.set()
    with pytest.raises(MemoryError):
        encoding.end()
    with pytest.raises(NotReady, match=r"part \d of version 1: found not announced for 0.5 s"):
        _follow(local, wait_s=0.5)
    first = set(landed)
    assert first
    monkeypatch.undo()
    local.encode(steps[1])
    fetched: list[int] = []
    part = local.site_ports.catalog.contents.part

    def counted(entry: Any, *rest: Any) -> bytes:
        fetched.append(entry.index)
        return part(entry, *rest)

    monkeypatch.setattr(local.site_ports.catalog.contents, "part", counted)
    local.prepare()
    assert first.isdisjoint(fetched), "parts of the first try are fetched again"
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def test_a_publisher_that_comes_back_with_another_checkpoint(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken of the first try does not count; the next run goes by the manifest and fetches what differs."""
    course = Course(monkeypatch, at=6)
    course.fails = True
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: _follow(local))
    _until(lambda: announced(local.ports.catalog, 1, 3) is not None)
    course.go.set()
    with pytest.raises(MemoryError):
        encoding.end()
    course.fails = False
    local.encode(steps[2])
    with pytest.raises(Conflict, match="as the manifest says that was sealed since"):
        preparing.end()
    with pytest.raises(DcrError):
        local.apply(1)
    assert local.words() == full(steps[0])
    local.prepare()
    local.commit()
    local.apply()
    assert local.words() == full(steps[2])


def test_an_abort_ends_the_following(
    local: Local, steps: list[Path], landed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=4)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: _follow(local))
    _until(lambda: bool(landed))
    abort(local.ports.catalog, 1)
    with pytest.raises(Conflict, match="aborted"):
        preparing.end()
    course.go.set()
    with pytest.raises(Conflict, match="abort"):
        encoding.end()
    local.cycle(steps[1])
    assert local.words() == full(steps[1])


def test_an_abort_just_before_the_wait_is_over_is_none_the_less_one(
    local: Local, steps: list[Path], landed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=4)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    monkeypatch.setattr(stream, "_ASIDE_S", 60.0)  # so that only the last look of all can find it
    preparing = course.begin(lambda: _follow(local, wait_s=3.0))
    _until(lambda: bool(landed))
    abort(local.ports.catalog, 1)
    asked: list[int] = []

    def seen(catalog: Any, version: int, index: int) -> bool:
        asked.append(index)
        return is_announced(catalog, version, index)

    monkeypatch.setattr(stream, "is_announced", seen)
    with pytest.raises(Overtaken):
        preparing.end()
    assert max(asked) < 8, "of those that are still to come, nobody asks for one after another"
    course.go.set()
    with pytest.raises(Conflict, match="abort"):
        encoding.end()


def test_whose_turn_it_is() -> None:
    turn, rested = Turn(), list[bool]()
    with turn.wanted(5):
        assert turn.rest(5, 0.0, 60.0), "alone, so the next one"
        with turn.wanted(3):
            begun = time.monotonic()
            assert not turn.rest(5, 0.0, 0.05), "3 comes first; 5 looks aside, and does not wait longer than it may"
            assert time.monotonic() - begun < 30
            assert turn.rest(3, 0.0, 60.0)
            waiting = threading.Thread(target=lambda: rested.append(turn.rest(5, 0.0, 60.0)))
            waiting.start()
            _until(lambda: bool(getattr(turn._changed, "_waiters", ())))
        waiting.join(30)  # told as soon as 3 is there
    assert rested == [False]


def test_who_comes_after_one_that_is_not_there_only_asks_whether_it_is() -> None:
    turn = Turn()
    with turn.wanted(3), turn.wanted(5):
        turn.looked(5, found=False)
        assert not turn.is_dry(), "it may be the one that is late"
        turn.looked(3, found=False)
        assert turn.is_dry()
        turn.looked(5, found=True)
        assert not turn.is_dry(), "parts come about in order only"


def test_parts_that_are_there_are_taken_while_an_earlier_one_is_late(local: Local, steps: list[Path]) -> None:
    """And one that a store does not tell of, but has, is found by asking for it."""
    local.encode(steps[1])
    catalog, turn = local.ports.catalog, Turn()
    key = stream._key(catalog, 1, 0)
    late = catalog.store.get(key)
    assert late is not None
    catalog.store.delete(key)
    first = Begun(lambda: stream.fetch(catalog, 1, 0, 1 << 30, 60.0, POLL, turn))
    _until(turn.is_dry)
    begun = time.monotonic()
    for index in (1, 2, 3):
        assert stream.fetch(catalog, 1, index, 1 << 30, 60.0, POLL, turn)
    assert time.monotonic() - begun < 30
    catalog.store.put_once(key, late)
    assert first.end()


def test_an_abort_after_the_last_part(
    local: Local, steps: list[Path], landed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, go = threading.Event(), threading.Event()
    whole = publish_module.seal

    def slow(*args: Any) -> Any:
        sealing.set()
        assert go.wait(60)
        return whole(*args)

    from dcr_mpi.acts import encode as encode_module

    monkeypatch.setattr(encode_module, "seal", slow)
    encoding = Begun(lambda: local.encode(steps[1]))
    assert sealing.wait(60)
    preparing = Begun(lambda: _follow(local))
    _until(lambda: len(landed) == 35)
    abort(local.ports.catalog, 1)
    with pytest.raises(Conflict, match="aborted"):
        preparing.end()
    go.set()
    with pytest.raises(Conflict):
        encoding.end()


@pytest.mark.parametrize(
    "change",
    [
        lambda e: dumps({**_plain(e), "index": e.index + 1}),
        lambda e: dumps({**_plain(e), "key": "p/versions/000001/parts/../../../x"}),
        lambda e: dumps({**_plain(e), "size": 1 << 60}),
        lambda e: dumps({**_plain(e), "size": -1}),
        lambda e: dumps({**_plain(e), "size": 1 << 30}),
        lambda e: dumps({**_plain(e), "sha256": "x"}),
        lambda e: b"{" * 5000,
        lambda e: b"",
    ],
)
def test_a_forged_announcement_is_refused(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], bytes]
) -> None:
    course = Course(monkeypatch, at=6)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    entry = announced(local.ports.catalog, 1, 0)
    assert entry is not None
    path = local.path / "store/p/versions/000001/stream/000000.json"
    path.unlink()
    path.write_bytes(change(entry))
    with pytest.raises(CorruptInput):
        _follow(local)
    course.go.set()
    encoding.end()
    local.prepare()  # goes by the manifest
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


def _plain(entry: Any) -> dict[str, Any]:
    return {**vars(entry)}


def test_a_part_forged_together_with_its_announcement_never_counts(
    local: Local, steps: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parts of another checkpoint of the same base fit the replica; only the manifest tells."""
    elsewhere = Local(tmp_path / "other", TRAINER, SITE)
    elsewhere.begin(steps[0])
    elsewhere.encode(steps[2])
    course = Course(monkeypatch, at=6)
    encoding = course.begin(lambda: local.encode(steps[1]))
    assert course.stands.wait(60)
    forged = announced(elsewhere.ports.catalog, 1, 0)
    assert forged is not None
    data = elsewhere.ports.catalog.contents.part(forged)
    assert sha256(data) == forged.sha256
    local.ports.catalog.store.put_once(forged.key, data)
    path = local.path / "store/p/versions/000001/stream/000000.json"
    path.unlink()
    path.write_bytes(dumps(forged))
    preparing = course.begin(lambda: _follow(local))
    course.go.set()
    encoding.end()
    with pytest.raises(Conflict, match="part 0 of version 1"):
        preparing.end()
    assert local.replica.sealed(1) is None
    local.prepare()
    local.commit()
    local.apply()
    assert local.words() == full(steps[1])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [[], [0, 0], [5] * 12, [100, 1, 1, 1, 1, 50, 50], list(range(30))])
def test_shares_are_even_and_in_order(sizes: list[int], ranks: int) -> None:
    shares = [share(sizes, rank, ranks) for rank in range(ranks)]
    assert sorted(k for mine in shares for k in mine) == list(range(len(sizes)))
    assert all(mine == sorted(mine) for mine in shares)
    loads = [sum(sizes[k] for k in mine) for mine in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
