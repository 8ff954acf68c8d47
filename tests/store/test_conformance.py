"""One suite for every store: what ``dcr_mpi/store/api.py`` promises, on a directory and on a real S3 server."""

from __future__ import annotations

import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dcr_mpi.errors import CorruptInput, UsageError
from dcr_mpi.store import Stat, Store

from .conftest import Place

MIB = 1 << 20
BAD_KEYS = [
    "", ".", "..", "/abs", "a/", "a//b", "../x", "a/../x", "a/./b", ".hidden", "a/.tmp-h-1-2", "a b", "a\\b", "a\nb",
    "a\n",
    "ü", "a?b", "a%2Fb", "a\0b", "k" * 256, "/".join(["k"] * 257), "k/" * 255 + "abc",
]  # fmt: skip


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def test_absent_is_none(store: Store) -> None:
    assert store.get("no/such") is None
    assert store.get("no/such", 3, 7) is None
    assert store.stat("no/such") is None


def test_create_then_everybody_reads(store: Store, place: Place) -> None:
    data = some_bytes(100_000)
    assert store.put_once("a/b/c.bin", data)
    for reader in (store, place.open()):
        assert reader.get("a/b/c.bin") == data
        assert reader.stat("a/b/c.bin") == Stat(100_000)
    assert store.get("a/b") is None and store.stat("a") is None  # a folder is not an object


def test_same_bytes_again_succeed_and_others_lose(store: Store, place: Place) -> None:
    assert store.put_once("k", b"first")
    assert store.put_once("k", b"first")
    assert place.open().put_once("k", bytearray(b"first"))
    for other in (b"", b"firs", b"First", b"firsts"):
        assert store.put_once("k", other) is False
    assert store.get("k") == b"first"


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda d: memoryview(d).cast("H")])
def test_any_contiguous_buffer(store: Store, wrap: type) -> None:
    assert store.put_once("k", wrap(b"0123456789"))
    assert store.get("k") == b"0123456789"


def test_ranges(store: Store) -> None:
    data = some_bytes(1000)
    store.put_once("k", data)
    for start, stop in [(0, 1), (0, 1000), (1, 999), (999, 1000), (500, None), (0, None), (10, 5000), (999, 1001)]:
        assert store.get("k", start, stop) == data[start:stop], (start, stop)
    for start, stop in [(1000, None), (1000, 1001), (5000, None), (5000, 6000)]:
        assert store.get("k", start, stop) == b"", (start, stop)
    for start in (0, 7, 1000, 9999):
        assert store.get("k", start, start) == b""
        assert store.get("absent", start, start) == b""
    for start, stop in [(-1, None), (-5, 3), (4, 3), (0, -1)]:
        with pytest.raises(UsageError):
            store.get("k", start, stop)


def test_zero_bytes_are_an_object(store: Store) -> None:
    assert store.put_once("empty", b"")
    assert store.put_once("empty", memoryview(b""))
    assert store.put_once("empty", b"x") is False
    assert store.stat("empty") == Stat(0)
    for start, stop in [(0, None), (0, 10), (3, None), (3, 10)]:
        assert store.get("empty", start, stop) == b"", (start, stop)
    assert store.get("empty", limit=0) == b""


def test_limit(store: Store) -> None:
    store.put_once("k", b"0123456789")
    assert store.get("k", limit=10) == b"0123456789"
    assert store.get("k", 2, 6, limit=4) == b"2345"
    assert store.get("k", 8, 100, limit=2) == b"89"  # it is the answer that is limited, not the question
    for start, stop, limit in [(0, None, 9), (2, 6, 3), (8, 100, 1), (0, None, 0)]:
        with pytest.raises(CorruptInput, match="at most"):
            store.get("k", start, stop, limit=limit)
    assert store.get("absent", limit=0) is None


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda k: repr(k[:12]))
def test_bad_keys_are_refused_everywhere(store: Store, key: str) -> None:
    for call in (lambda: store.put_once(key, b""), lambda: store.get(key), lambda: store.stat(key)):
        with pytest.raises(UsageError, match="store key"):
            call()
    if key:
        with pytest.raises(UsageError, match="store key"):
            store.sweep(key, 0)


@pytest.mark.parametrize(
    "key", ["a", "A.b-c_d", "v/000042/parts/0-ff.bin", "k" * 255, "k/" * 255 + "ab", "-", "a.", "a.."]
)
def test_good_keys(store: Store, key: str) -> None:
    assert store.put_once(key, key.encode())
    assert store.get(key) == key.encode()


@pytest.mark.parametrize("size", [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 10 * MIB, 10 * MIB + 1])
def test_sizes_around_the_multipart_threshold(store: Store, size: int) -> None:
    data = some_bytes(size, size)
    assert store.put_once("big", data)
    assert store.stat("big") == Stat(size)
    assert store.get("big") == data
    assert store.get("big", size - 3) == data[-3:]
    assert store.get("big", 5 * MIB - 2, 5 * MIB + 2) == data[5 * MIB - 2 : 5 * MIB + 2]
    assert store.put_once("big", data)
    assert store.put_once("big", data[:-1] + bytes([data[-1] ^ 1])) is False
    assert store.get("big") == data


@pytest.mark.parametrize("size", [100, 4 * MIB])
def test_racing_threads_have_one_winner(place: Place, size: int) -> None:
    stores, rounds = [place.open() for _ in range(4)], 5
    with ThreadPoolExecutor(4) as pool:
        for n in range(rounds):
            won = list(pool.map(lambda i, n=n: stores[i].put_once(f"race/{n}", bytes([i]) * size), range(4)))
            assert sum(won) == 1
            assert stores[0].get(f"race/{n}") == bytes([won.index(True)]) * size


@pytest.mark.parametrize("size", [100, 4 * MIB])
def test_racing_processes_have_one_winner(place: Place, tmp_path: Path, size: int) -> None:
    keys, go = [f"race/{n}" for n in range(4)], tmp_path / "go"
    racers = [place.child("race", keys=keys, fill=i, size=size, go=str(go)) for i in range(3)]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n", racer.communicate()
    go.touch()
    outs = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3, outs
    won = [json.loads(out) for out, _ in outs]
    for n, key in enumerate(keys):
        winners = [i for i in range(3) if won[i][n]]
        assert len(winners) == 1, (key, won)
        assert place.open().get(key) == bytes(winners) * size


def test_many_threads_read_one_store(store: Store) -> None:
    data = some_bytes(300_000)
    store.put_once("k", data)
    with ThreadPoolExecutor(8) as pool:
        pieces = pool.map(lambda at: store.get("k", at, at + 10_000), range(0, 300_000, 10_000))
        assert b"".join(p or b"" for p in pieces) == data


def test_sweep_finds_what_a_killed_writer_left(place: Place) -> None:
    """SIGKILL in the middle of an upload: nothing is visible, the sweep drops the rest, and the key is free."""
    store, data = place.open(), b"\7" * (11 * MIB)
    store.put_once("p/finished", b"done")
    # Dies with some of the bytes sent: after the second answer (a part), after the file and folders are made.
    step = 2 if place.options else next(n for n in range(1, 20) if _leaves_something(place, n))
    if place.options:
        child = place.child("die", key="p/orphan", fill=7, size=len(data), step=step)
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
    assert store.stat("p/orphan") is None and store.get("p/orphan") is None
    assert store.sweep("", 3600) == 0  # young: its writer may be alive
    assert store.sweep("q", 0) == 0 and store.sweep("p/orphan", 0) == 0 and store.sweep("p/orph", 0) == 0
    assert store.sweep("p", 0) == 1
    assert store.sweep("", 0) == 0
    assert store.get("p/finished") == b"done"
    assert store.put_once("p/orphan", data)
    assert store.get("p/orphan") == data


def _leaves_something(place: Place, step: int) -> bool:
    child = place.child("die", key="p/orphan", fill=7, size=11 * MIB, step=step)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    return any(Path(place.url.removeprefix("file://")).rglob(".tmp-*"))


def test_walk_shows_every_object_and_its_size(store: Store) -> None:
    keys = {"a/b/c": 3, "a/b-d": 0, "a/e": 10, "ab/f": 1, "g": 2}
    for key, size in keys.items():
        assert store.put_once(key, bytes(size))
    assert {e.key: e.size for e in store.walk("")} == keys
    assert {e.key for e in store.walk("a")} == {"a/b/c", "a/b-d", "a/e"}
    assert [e.key for e in store.walk("a/b")] == ["a/b/c"]
    assert list(store.walk("no/such")) == []
    assert all(0 <= e.age_s < 600 for e in store.walk(""))


def test_walk_goes_over_pages(store: Store) -> None:
    """More objects than one answer of an S3 store holds (1000)."""
    keys = {f"many/{k:05d}" for k in range(1005)}
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda key: store.put_once(key, b"x"), keys))
    assert {e.key for e in store.walk("many")} == keys


def test_a_deleted_object_is_gone_and_can_be_put_again(store: Store, place: Place) -> None:
    store.delete("x/y/z")
    store.put_once("x/y/z", b"one")
    store.put_once("x/k", b"other")
    store.delete("x/y/z")
    store.delete("x/y/z")
    for reader in (store, place.open()):
        assert reader.get("x/y/z") is None
        assert reader.stat("x/y/z") is None
        assert reader.get("x/k") == b"other"
    assert [e.key for e in store.walk("x")] == ["x/k"]
    assert store.put_once("x/y/z", b"two") is True
    assert store.get("x/y/z") == b"two"


@pytest.mark.parametrize("bad", ["", "../x", "a//b", ".hidden"])
def test_delete_and_walk_refuse_what_is_no_key(store: Store, bad: str) -> None:
    with pytest.raises(UsageError):
        store.delete(bad)
    if bad:
        with pytest.raises(UsageError):
            list(store.walk(bad))
