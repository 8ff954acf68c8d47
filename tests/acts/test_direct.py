"""The direct relay as the acts use it: streaming, copies in the store, dead and other publishers, catching up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.acts.anchor import AnchorJob, anchor
from dcr_mpi.acts.apply import ApplyJob
from dcr_mpi.acts.catch_up import CaughtUp, catch_up
from dcr_mpi.acts.collect import Retention, collect
from dcr_mpi.acts.commit import abort, decide
from dcr_mpi.acts.offering import finish
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.direct import Outlet, Serving
from dcr_mpi.errors import Conflict, CorruptInput, NotAuthentic, NotReady
from dcr_mpi.jsonable import dumps
from dcr_mpi.model import Offer
from tests.acts.direct import POLL, Direct
from tests.acts.test_stream import Begun, Course, _until
from tests.acts.tiny import full, write_steps
from tests.signing.keys import rings


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_steps(tmp_path_factory.mktemp("steps"), 5)


@pytest.fixture
def world(tmp_path: Path, steps: list[Path]) -> Iterator[Direct]:
    made = Direct(tmp_path)
    made.begin(steps[0])
    yield made
    made.close()


def _finish(world: Direct, version: int, step: Path) -> None:
    """Commit, apply, and look at every word."""
    assert decide(world.ports.catalog, version, wait_s=1).commit
    world.apply(version)
    assert world.words() == full(step)


def _catch_up(world: Direct) -> CaughtUp:
    where = world.replica.directory
    return catch_up(world.site_ports, PrepareJob("s", where), ApplyJob("s", where, full=True))


def test_parts_land_while_later_ones_are_encoded_and_none_is_in_the_store(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=6)
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(world.follow)
    _until(lambda: len(world.outlet.shelf.entries) == 6 and world.inlet.taken == _size(world.outlet))
    assert world.ports.catalog.manifest(1) is None
    course.go.set()
    sealed, prepared = encoding.end(), preparing.end()
    assert prepared.manifest_sha256 == sealed.manifest_sha256
    payload = sealed.bytes["payload"]
    assert prepared.detail["fetched"] == {"direct": payload, "store": 0}
    assert world.outlet.sent == payload, "each part once"
    assert world.parts(1) == []
    assert list((world.path / "store/p/versions/000001").glob("stream/*")) == []
    _finish(world, 1, steps[1])


def _size(outlet: Outlet) -> int:
    return sum(entry.size for entry in outlet.shelf.entries)


def test_the_site_may_begin_before_anything_is_offered(world: Direct, steps: list[Path]) -> None:
    preparing = Begun(world.follow)
    sealed = world.encode(steps[1])
    prepared = preparing.end()
    assert prepared.detail["fetched"] == {"direct": sealed.bytes["payload"], "store": 0}
    _finish(world, 1, steps[1])


def test_a_sealed_version_is_served_without_waiting(world: Direct, steps: list[Path]) -> None:
    sealed = world.encode(steps[1])
    prepared = world.follow(wait_s=0)
    assert prepared is not None
    assert prepared.detail["fetched"] == {"direct": sealed.bytes["payload"], "store": 0}
    _finish(world, 1, steps[1])


def test_asking_the_store_for_no_part(world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of the store is the same number of requests for one part and for many."""
    asked: list[str] = []
    store = world.site_ports.catalog.store
    for name in ("get", "stat"):
        whole = getattr(store, name)

        def counted(key: str, *rest: Any, _whole: Any = whole, **more: Any) -> Any:
            asked.append(key)
            return _whole(key, *rest, **more)

        monkeypatch.setattr(store, name, counted)
    world.encode(steps[1])
    asked.clear()
    world.follow(wait_s=5)
    assert not [key for key in asked if "/parts/" in key or "/stream/" in key]
    assert len(asked) < 25


# -- copies in the store ------------------------------------------------------------------------------------------


def test_after_the_copy_is_whole_and_its_first_part_comes_last(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = world.encode(steps[1])
    put: list[str] = []
    whole = world.ports.catalog.contents.put_part

    def noted(entry: Any, data: bytes) -> None:
        put.append(entry.key)
        whole(entry, data)

    monkeypatch.setattr(world.ports.catalog.contents, "put_part", noted)
    world.follow()
    assert not world.ports.catalog.has_copy(world.ports.catalog.sealed(1)[0])
    served = world.serve(1)
    assert served is not None
    assert (served.missing, served.sent, served.stored) == ((), sealed.bytes["payload"], True)
    assert put[-1].rpartition("/")[2].startswith("000000-")
    assert len(put) == sealed.detail["parts"] == len(world.parts(1))
    assert world.ports.catalog.has_copy(world.ports.catalog.sealed(1)[0])
    assert world.outlet.version is None
    _finish(world, 1, steps[1])


def test_a_site_that_missed_it_takes_the_copy(world: Direct, steps: list[Path]) -> None:
    world.encode(steps[1])
    served = world.serve(1, wait_s=0.05)
    assert served is not None and served.missing == ("s",) and served.stored
    prepared = world.follow(wait_s=0)
    assert prepared is not None
    assert prepared.detail["fetched"]["direct"] == 0
    _finish(world, 1, steps[1])


def test_also_both_have_them_and_the_site_goes_direct(tmp_path: Path, steps: list[Path]) -> None:
    world = Direct(tmp_path, "also")
    world.begin(steps[0])
    preparing = Begun(world.follow)
    sealed = world.encode(steps[1])
    assert len(world.parts(1)) == sealed.detail["parts"]
    prepared = preparing.end()
    assert prepared.detail["fetched"] == {"direct": sealed.bytes["payload"], "store": 0}
    world.publisher_starts(None)
    world.drop_journals(1)
    again = world.follow(wait_s=0)  # now there is the store alone
    assert again is not None
    assert again.detail["fetched"] == {"direct": 0, "store": sealed.bytes["payload"]}
    _finish(world, 1, steps[1])
    world.close()


def test_also_a_publisher_that_goes_away_in_the_middle(
    tmp_path: Path, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest comes from the store."""
    world = Direct(tmp_path, "also")
    world.begin(steps[0])
    sealed = world.encode(steps[1])
    fetch, left = world.inlet.fetch, [10]

    def cut(*args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            world.outlet.close()
        return fetch(*args)

    monkeypatch.setattr(world.inlet, "fetch", cut)
    prepared = world.follow(wait_s=5)
    assert prepared is not None
    ways = prepared.detail["fetched"]
    assert ways["direct"] > 0 and ways["store"] > 0
    assert ways["direct"] + ways["store"] == sealed.bytes["payload"]
    _finish(world, 1, steps[1])
    world.close()


def test_never_says_so_to_a_site_that_comes_too_late(tmp_path: Path, steps: list[Path]) -> None:
    world = Direct(tmp_path, "never")
    world.begin(steps[0])
    world.encode(steps[1])
    with pytest.raises(NotReady, match=r"not prepared after 0.05 s.*direct.store: never"):
        world.serve(1, wait_s=0.05)
    with pytest.raises(NotReady, match=r"no publisher that answers, and none in the store.*dcr anchor.*--catch-up"):
        world.follow(wait_s=0)
    by_store = dataclasses.replace(world.site_ports, inlet=None)
    with pytest.raises(NotReady, match=r"part \d+ not in the store.*dcr anchor"):
        _prepare(by_store, world)
    sealed = world.encode(steps[1])  # run again, it serves the same parts
    prepared = world.follow(wait_s=0)
    assert prepared is not None and prepared.manifest_sha256 == sealed.manifest_sha256
    served = world.serve(1)
    assert served is not None and not served.stored
    assert world.parts(1) == []
    _finish(world, 1, steps[1])
    world.close()


def _prepare(ports: Any, world: Direct) -> None:
    from dcr_mpi.acts.prepare import prepare

    prepare(ports, PrepareJob("s", world.replica.directory))


def test_never_a_site_that_is_behind_comes_back_by_an_anchor(tmp_path: Path, steps: list[Path]) -> None:
    world = Direct(tmp_path, "never")
    world.begin(steps[0])
    for number in (1, 2):
        world.encode(steps[number])
        assert decide(world.ports.catalog, number, sites=[], wait_s=1).commit
    world.publisher_starts("never")
    with pytest.raises(NotReady, match="dcr anchor"):
        _catch_up(world)
    anchor(world.ports, AnchorJob(steps[2], world.path / "state", codec=world.codec))
    assert _catch_up(world).anchored == 2
    assert world.words() == full(steps[2])
    preparing = Begun(world.follow)
    world.encode(steps[3])
    preparing.end()
    _finish(world, 3, steps[3])
    world.close()


def test_what_is_committed_and_still_served_is_caught_up_with(tmp_path: Path, steps: list[Path]) -> None:
    world = Direct(tmp_path, "never")
    world.begin(steps[0])
    world.encode(steps[1])
    assert decide(world.ports.catalog, 1, sites=[], wait_s=1).commit
    assert _catch_up(world) == CaughtUp((1,))
    assert world.words() == full(steps[1])
    world.close()


def test_stored_versions_are_folded_and_the_one_that_is_served_follows(tmp_path: Path, steps: list[Path]) -> None:
    world = Direct(tmp_path, "after")
    world.begin(steps[0])
    for number in (1, 2, 3):
        world.encode(steps[number])
        assert decide(world.ports.catalog, number, sites=[], wait_s=1).commit
        if number < 3:
            assert finish(world.ports).stored
    assert _catch_up(world) == CaughtUp((1, 2, 3))
    assert world.words() == full(steps[3])
    world.close()


def test_a_publisher_killed_before_it_copied_leaves_an_anchor_to_its_successor(
    world: Direct, steps: list[Path]
) -> None:
    world.encode(steps[1])
    assert decide(world.ports.catalog, 1, sites=[], wait_s=1).commit
    world.publisher_starts("after")  # it was killed
    with pytest.raises(NotReady, match="dcr anchor"):
        _catch_up(world)
    assert not world.ports.catalog.has_anchor(1)
    world.encode(steps[2])
    assert world.ports.catalog.has_anchor(1)
    assert decide(world.ports.catalog, 2, sites=[], wait_s=1).commit
    finish(world.ports)
    assert _catch_up(world).anchored == 2
    assert world.words() == full(steps[2])


def test_an_aborted_version_is_not_copied(world: Direct, steps: list[Path]) -> None:
    world.encode(steps[1])
    abort(world.ports.catalog, 1)
    served = world.serve(1, wait_s=5)
    assert served is not None and not served.stored
    assert world.parts(1) == []
    world.encode(steps[1])
    world.follow(wait_s=0)
    _finish(world, 2, steps[1])


# -- publishers that come and go ----------------------------------------------------------------------------------


def _dies_midway(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch, wait_s: float = 60.0
) -> tuple[Course, Begun]:
    """A publisher that died before part 6, and the refit that has all parts before it and still waits."""
    course = Course(monkeypatch, at=6)
    course.fails = True
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: world.follow(wait_s=wait_s))
    _until(lambda: world.inlet.taken > 0 and world.inlet.taken == _size(world.outlet))
    course.go.set()
    with pytest.raises(MemoryError):
        encoding.end()
    return course, preparing


def test_a_publisher_that_dies_and_comes_back(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site gives up in time; what it has counts when the publisher is back."""
    _, preparing = _dies_midway(world, steps, monkeypatch, wait_s=3)
    world.publisher_starts("after")
    with pytest.raises(NotReady, match=r"part \d+ neither in the store nor at 127.0.0.1"):
        preparing.end()
    first = world.inlet.taken
    monkeypatch.undo()
    preparing = Begun(world.follow)  # while nobody answers yet
    sealed = world.encode(steps[1])
    prepared = preparing.end()
    assert prepared.detail["fetched"]["direct"] == sealed.bytes["payload"] - first
    _finish(world, 1, steps[1])


def test_a_site_that_still_waits_goes_on_with_the_successor(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one refit: parts of the first publisher, and the rest of the second, each once."""
    course, preparing = _dies_midway(world, steps, monkeypatch)
    first = world.inlet.taken
    course.fails = False
    world.publisher_starts("after")
    sealed = world.encode(steps[1])
    prepared = preparing.end()
    assert prepared.detail["fetched"] == {"direct": sealed.bytes["payload"], "store": 0}
    assert world.outlet.sent == sealed.bytes["payload"] - first
    _finish(world, 1, steps[1])


def test_a_site_that_still_waits_goes_on_with_the_store(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    course, preparing = _dies_midway(world, steps, monkeypatch)
    first = world.inlet.taken
    course.fails = False
    world.publisher_starts(None)
    sealed = world.encode(steps[1])
    assert preparing.end().detail["fetched"] == {"direct": first, "store": sealed.bytes["payload"] - first}
    _finish(world, 1, steps[1])


def test_a_publisher_that_comes_back_by_the_store(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=6)
    course.fails = True
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    course.go.set()
    with pytest.raises(MemoryError):
        encoding.end()
    world.publisher_starts(None)
    preparing = Begun(world.follow)
    monkeypatch.undo()
    sealed = world.encode(steps[1])
    assert preparing.end().detail["fetched"] == {"direct": 0, "store": sealed.bytes["payload"]}
    _finish(world, 1, steps[1])


def test_a_site_by_the_store_is_told_what_it_lacks(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(monkeypatch, at=6)
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    by_store = dataclasses.replace(world.site_ports, inlet=None)
    job = PrepareJob("s", world.replica.directory, wait_s=0.2, poll_s=POLL)
    from dcr_mpi.acts.prepare import prepare

    with pytest.raises(NotReady, match=r"its publisher serves parts itself.*relay.transport: direct"):
        prepare(by_store, job)
    course.go.set()
    encoding.end()


def test_a_publisher_that_comes_back_with_another_checkpoint(
    world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken of the first does not count."""
    course = Course(monkeypatch, at=6)
    course.fails = True
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(lambda: world.follow(wait_s=2))
    _until(lambda: world.inlet.taken > 0)
    course.go.set()
    with pytest.raises(MemoryError):
        encoding.end()
    world.publisher_starts("never")
    with pytest.raises(NotReady):
        preparing.end()
    course.fails = False
    preparing = Begun(world.follow)
    world.encode(steps[2])
    with pytest.raises(Conflict, match="as the manifest says that was sealed since"):
        preparing.end()
    assert world.words() == full(steps[0])
    world.follow(wait_s=0)
    _finish(world, 1, steps[2])


def test_an_abort_ends_the_following(world: Direct, steps: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(monkeypatch, at=4)
    encoding = course.begin(lambda: world.encode(steps[1]))
    assert course.stands.wait(60)
    preparing = course.begin(world.follow)
    _until(lambda: world.inlet.taken > 0)
    abort(world.ports.catalog, 1)
    course.go.set()
    with pytest.raises(Conflict, match="abort"):
        encoding.end()
    world.publisher_starts("after")
    with pytest.raises(Conflict, match="aborted"):
        preparing.end()
    world.encode(steps[1])
    world.follow(wait_s=0)
    _finish(world, 2, steps[1])


def test_two_publishers_of_one_version_are_two_offers(world: Direct, steps: list[Path], tmp_path: Path) -> None:
    other = Outlet(Serving("127.0.0.1", store="never", spool=tmp_path))
    world.encode(steps[1])
    second = dataclasses.replace(world.ports, outlet=other)
    from dcr_mpi.acts.encode import encode
    from dcr_mpi.acts.next_version import EncodeJob

    encode(second, EncodeJob(steps[1], None, world.path / "state", ("s",), world.codec))
    offers = world.ports.catalog.offers(1)
    assert [offer.store for offer in offers] == ["never", "after"], "the newest first"
    other.close()  # the newest is gone, the other still answers
    sealed = world.ports.catalog.sealed(1)[0]
    prepared = world.follow(wait_s=0)
    assert prepared is not None
    assert prepared.detail["fetched"] == {"direct": sealed.payload_bytes, "store": 0}
    _finish(world, 1, steps[1])


# -- offers that nobody should take -------------------------------------------------------------------------------


def _replace(world: Direct, content: bytes) -> None:
    path = world.path / "store/p/versions/000001/direct/000000.json"
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [
        {"token": "x"},
        {"store": "sometimes"},
        {"owners": (5,)},
        {"owners": (-1,)},
        {"endpoints": ()},
        {"host": "a b"},
        {"host": ""},
        {"port": 0},
        {"port": 1 << 16},
        {"certificate": "00"},
        {"version": 2},
    ],
)
def test_an_offer_that_no_publisher_would_make_is_refused(
    world: Direct, steps: list[Path], change: dict[str, Any]
) -> None:
    world.encode(steps[1])
    (offer,) = world.ports.catalog.offers(1)
    inner = {name: value for name, value in change.items() if name in ("host", "port", "certificate")}
    outer = {name: value for name, value in change.items() if name not in inner}
    if inner:
        outer["endpoints"] = (dataclasses.replace(offer.endpoints[0], **inner),)
    _replace(world, dumps(dataclasses.replace(offer, **outer)))
    with pytest.raises(CorruptInput):
        world.follow(wait_s=0)
    assert world.words() == full(steps[0])


def test_parts_of_a_forged_offer_never_count(world: Direct, steps: list[Path], tmp_path: Path) -> None:
    """Parts of another checkpoint of the same base fit the replica; only the manifest tells."""
    other = Direct(tmp_path / "other")
    other.begin(steps[0])
    other.encode(steps[2])
    with pytest.MonkeyPatch.context() as patch:
        course = Course(patch, at=6)
        encoding = course.begin(lambda: world.encode(steps[1]))
        assert course.stands.wait(60)
        (forged,) = other.ports.catalog.offers(1)
        policy = world.ports.catalog.policy()[1]
        _replace(world, dumps(dataclasses.replace(forged, policy_sha256=policy)))
        preparing = course.begin(world.follow)
        _until(lambda: world.inlet.taken > 0)
        course.go.set()
        encoding.end()
        with pytest.raises(Conflict, match="as the manifest says that was sealed since"):
            preparing.end()
    assert world.replica.sealed(1) is None
    assert world.words() == full(steps[0])
    other.close()


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
def test_an_offer_is_the_publishers_alone_where_there_are_keys(tmp_path: Path, steps: list[Path], kind: str) -> None:
    trainer, site = rings(kind)
    world = Direct(tmp_path, "never", trainer, site)
    world.begin(steps[0])
    world.encode(steps[1])
    path = tmp_path / "store/p/versions/000001/direct/000000.json"
    good = path.read_bytes()
    content, _, line = good.partition(b"\n")
    assert line, "signed"
    _replace(world, content)
    with pytest.raises(NotAuthentic, match=r"direct/000000\.json.*no signature"):
        world.follow(wait_s=0)
    _replace(world, content.replace(b"127.0.0.1", b"127.0.0.2") + b"\n" + line)
    with pytest.raises(NotAuthentic):
        world.follow(wait_s=0)
    assert world.inlet.taken == 0
    _replace(world, good)
    world.follow(wait_s=0)
    _finish(world, 1, steps[1])
    world.close()


def test_a_token_is_in_no_message(world: Direct, steps: list[Path]) -> None:
    world.encode(steps[1])
    (offer,) = world.ports.catalog.offers(1)
    assert isinstance(offer, Offer)
    assert offer.token not in repr(offer)
    world.publisher_starts(None)
    with pytest.raises(NotReady) as caught:
        world.follow(wait_s=0)
    assert offer.token not in str(caught.value)


def test_offers_are_collected_with_their_version(world: Direct, steps: list[Path]) -> None:
    for number in (1, 2):
        preparing = Begun(world.follow)
        world.encode(steps[number])
        preparing.end()
        _finish(world, number, steps[number])
        world.serve(number)
    anchor(world.ports, AnchorJob(steps[2], world.path / "state", codec=world.codec))
    found = collect(world.ports.catalog, Retention(1, 1e6))
    assert found.strange == 0
    assert "p/versions/000001/direct/000000.json" in found.keys
    assert not (world.path / "store/p/versions/000001/direct/000000.json").exists()
