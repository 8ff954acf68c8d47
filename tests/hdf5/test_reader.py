"""The reader beyond the zoo: strided boxes by every road, threads, files that change under it, wrong arguments."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcr_mpi.hdf5.reader as room
from dcr_mpi.errors import CorruptInput, GeometryError
from dcr_mpi.hdf5 import ShardReader, inventory, region
from dcr_mpi.hdf5.place import hyperslabs
from dcr_mpi.model import Box
from tests.zoo import ZOO
from tests.zoo.words import KINDS, noise, opaque, plist, put

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def words_of(reader: ShardReader, path: str, box: Box, start: int, stop: int, width: int) -> bytes:
    out = np.full((stop - start) * width, 0xEE, np.uint8)
    reader.read(path, box, start, stop, out)
    return out.tobytes()


@pytest.mark.parametrize(
    ("long_run", "wide_gap", "window"), [(1 << 30, 1 << 30, 64), (8, 1 << 30, 64), (1 << 30, 8, 64)]
)
def test_strided_boxes_by_window_and_by_run(
    long_run: int, wide_gap: int, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three roads, forced by small limits, gives what numpy slices out."""
    for name, value in (("_LONG_RUN", long_run), ("_WIDE_GAP", wide_gap), ("_WINDOW", window)):
        monkeypatch.setattr(room, name, value)
    shape, path = (5, 7, 6), tmp_path / "shard.h5"
    with h5py.File(path, "w") as file:
        put(file, "w", KINDS["u32"], shape, noise(840, 1))
        put(file, "raw", opaque(12), shape, noise(2520, 2))  # three words of 4 bytes
    rng = np.random.default_rng(3)
    with ShardReader(path) as reader:
        for name, data, per in (("w", noise(840, 1), 1), ("raw", noise(2520, 2), 3)):
            elements = np.frombuffer(data, np.uint8).reshape(*shape, 4 * per)
            for _ in range(200):
                edges = [sorted(rng.integers(0, n + 1, 2).tolist()) for n in shape]
                box = Box(tuple(a for a, _ in edges), tuple(b for _, b in edges))
                flat = elements[tuple(slice(a, b) for a, b in edges)].tobytes()
                start, stop = sorted(rng.integers(0, box.size * per + 1, 2).tolist())
                assert words_of(reader, name, box, start, stop, 4) == flat[4 * start : 4 * stop]


@given(SHAPES, st.data())
@settings(max_examples=300, deadline=None)
def test_hyperslabs_cover_a_range_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, numbers.size)] * 2)))
    parts = [
        numbers[tuple(slice(a, a + n) for a, n in zip(at, count, strict=True))]
        for at, count in hyperslabs(shape, start, stop)
    ]
    assert np.concatenate([p.ravel() for p in parts] or [numbers[:0].ravel()]).tolist() == list(range(start, stop))
    assert len(parts) <= 2 * len(shape)


def test_elements_of_several_words_through_the_library(tmp_path: Path) -> None:
    """A range of words may begin and end inside an element."""
    path, data = tmp_path / "shard.h5", noise(10 * 24, 4)
    with h5py.File(path, "w") as file:
        put(file, "w", opaque(24), (10,), data, plist(chunk=(3,), deflate=1))
    with ShardReader(path) as reader:
        for start in range(31):
            for stop in range(start, 31):
                assert words_of(reader, "w", Box((0,), (10,)), start, stop, 8) == data[8 * start : 8 * stop]


def test_a_row_of_chunks_is_unpacked_once(tmp_path: Path) -> None:
    """Read in order, block by block: without room for a row of chunks each block would unpack the whole row again."""
    path = tmp_path / "shard.h5"
    with h5py.File(path, "w") as file:
        put(file, "w", KINDS["u16"], (2048, 16384), None, plist(chunk=(512, 4096), deflate=1))  # 4 MiB a chunk
        put(file, "one", KINDS["u16"], (40_000_000,), None, plist(chunk=(40_000_000,), deflate=1))
    with ShardReader(path) as reader:
        for name, box, cache in (
            ("w", Box((0, 0), (2048, 16384)), 16 << 20),
            ("one", Box((0,), (40_000_000,)), 80_000_000),
        ):
            words_of(reader, name, box, 0, 8, 2)
            assert reader._handles[name].get_access_plist().get_chunk_cache()[1] == cache


@pytest.mark.parametrize("kind", ["contiguous", "gzip", "compact"])
def test_threads(kind: str, tmp_path: Path) -> None:
    case = ZOO[kind](tmp_path / "shard.h5")
    want = case.want[0]
    assert want.data is not None
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            a, b = sorted(rng.integers(0, len(want.data or b"") // 2 + 1, 2).tolist())
            got = words_of(reader, want.path, Box.whole(want.shape), a, b, 2)
            if got != (want.data or b"")[2 * a : 2 * b]:
                wrong.append((a, b))

    with ShardReader(case.path) as reader:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may return less than was asked for (it does above 2 GiB)."""
    case = ZOO["contiguous"](tmp_path / "shard.h5")
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:13]], at))
    with ShardReader(case.path) as reader:
        assert words_of(reader, "g/w", Box.whole((6, 10, 7)), 0, 420, 2) == case.want[0].data
        assert (
            words_of(reader, "g/w", Box((0, 0, 0), (6, 10, 6)), 0, 360, 2)
            == np.frombuffer(case.want[0].data, "u2").reshape(60, 7)[:, :6].tobytes()
        )


def test_file_cut_while_it_is_read(tmp_path: Path) -> None:
    case = ZOO["contiguous"](tmp_path / "shard.h5")
    with ShardReader(case.path) as reader:
        os.truncate(case.path, case.path.stat().st_size - 100)
        with pytest.raises(CorruptInput, match="shard incomplete"):
            words_of(reader, "g/w", Box.whole((6, 10, 7)), 0, 420, 2)


def test_file_replaced_since_it_was_listed(tmp_path: Path) -> None:
    case = ZOO["contiguous"](tmp_path / "shard.h5")
    found = inventory(case.path)
    ZOO["contiguous"](tmp_path / "other.h5")
    os.replace(tmp_path / "other.h5", case.path)
    with pytest.raises(CorruptInput, match="another file"):
        ShardReader(case.path, found)


def test_damaged_chunk(tmp_path: Path) -> None:
    case = ZOO["gzip_big_endian"](tmp_path / "shard.h5")
    with h5py.File(case.path) as file:
        chunk = file["g/w"].id.get_chunk_info(5)
    with case.path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 4)
        raw.write(b"\xff\xff\xff")
    with ShardReader(case.path) as reader, pytest.raises(CorruptInput, match="'g/w'"):
        words_of(reader, "g/w", Box.whole((6, 10, 7)), 0, 420, 4)


def test_closed_reader(tmp_path: Path) -> None:
    case = ZOO["contiguous"](tmp_path / "shard.h5")
    before = len(os.listdir("/proc/self/fd"))
    reader = ShardReader(case.path)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        words_of(reader, "g/w", Box.whole((6, 10, 7)), 0, 1, 2)
    for kind in ("gzip", "virtual", "external"):
        with ShardReader(ZOO[kind](tmp_path / f"{kind}.h5").path) as reader:
            name = reader.inventory.datasets[-1]
            words_of(reader, name.path, Box.whole(name.shape), 0, 1, reader.inventory.datasets[-1].itemsize)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


@pytest.mark.parametrize(
    ("path", "box", "start", "stop", "size"),
    [
        ("nope", Box((0,), (1,)), 0, 1, 2),
        ("g/w", Box((0, 0, 0), (7, 10, 7)), 0, 1, 2),
        ("g/w", Box((0, 0), (6, 10)), 0, 1, 2),
        ("g/w", Box((3, 0, 0), (2, 10, 7)), 0, 0, 0),
        ("g/w", Box((0, 0, 0), (6, 10, 7)), 419, 421, 4),
        ("g/w", Box((0, 0, 0), (6, 10, 7)), 5, 4, 0),
        ("g/w", Box((0, 0, 0), (6, 10, 7)), -1, 1, 4),
        ("g/w", Box((0, 0, 0), (6, 10, 7)), 0, 4, 9),
    ],
)
def test_wrong_arguments(path: str, box: Box, start: int, stop: int, size: int, tmp_path: Path) -> None:
    case = ZOO["contiguous"](tmp_path / "shard.h5")
    with ShardReader(case.path) as reader, pytest.raises(GeometryError):
        reader.read(path, box, start, stop, np.empty(size, np.uint8))


def test_region_refuses_a_box_outside(tmp_path: Path) -> None:
    dataset = inventory(ZOO["contiguous"](tmp_path / "shard.h5").path).datasets[0]
    with pytest.raises(GeometryError, match="box"):
        region(dataset, Box((0, 0, 0), (6, 11, 7)))


def test_memory_of_a_wide_strided_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the span, no more than the window is held."""
    monkeypatch.setattr(room, "_WINDOW", 4096)
    path = tmp_path / "shard.h5"
    with h5py.File(path, "w") as file:
        put(file, "w", KINDS["u16"], (1000, 64), noise(128_000, 6))
    with ShardReader(path) as reader:
        got = words_of(reader, "w", Box((0, 0), (1000, 1)), 0, 1000, 2)
        assert got == np.frombuffer(noise(128_000, 6), "u2").reshape(1000, 64)[:, 0].tobytes()
        assert reader._scratch.words("window", 0, 1).base.nbytes <= 4096  # type: ignore[union-attr]
