"""Every file of the zoo: listed as it is and read bit by bit, or refused with a message that a user can act on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import GeometryError
from dcr_mpi.hdf5 import Dataset, ShardReader, inventory, region
from dcr_mpi.model import Box
from tests.zoo import ZOO, Want, build


def read(reader: ShardReader, path: str, box: Box, start: int, stop: int) -> bytes:
    dataset = next(d for d in reader.inventory.datasets if d.path == path)
    out = np.full((stop - start) * dtype(dataset.dtype).word_bytes, 0xEE, np.uint8)
    reader.read(path, box, start, stop, out)
    return out.tobytes()


@pytest.mark.parametrize("kind", ZOO)
def test_listed_and_read_or_refused(kind: str, tmp_path: Path) -> None:
    case = build(kind, tmp_path / "shard.h5")
    if case.refused:
        before = _bytes(case.path)
        with pytest.raises(case.refused.error) as caught:
            inventory(case.path, dtypes=case.dtypes)
        assert type(caught.value) is case.refused.error
        assert [w for w in case.refused.words if w not in str(caught.value)] == []
        assert _bytes(case.path) == before, "an awkward file is never repaired"
        return
    found = inventory(case.path, dtypes=case.dtypes)
    assert (found.file, found.size, found.step) == ("shard.h5", case.path.stat().st_size, case.step)
    assert [_seen(d) for d in found.datasets] == [_expected(w) for w in case.want]
    with ShardReader(case.path, found) as reader:
        for want, dataset in zip(case.want, found.datasets, strict=True):
            if want.data is None:
                _check_probes(reader, want, dataset)
            else:
                _check_words(reader, want, want.data)
                _check_place(case.path, dataset, want.data)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _seen(d: Dataset) -> tuple[object, ...]:
    return d.path, d.names, d.shape, d.dtype, d.itemsize, d.storage, d.filters, d.offset is None


def _expected(w: Want) -> tuple[object, ...]:
    return w.path, w.names, w.shape, w.dtype, dtype(w.dtype).itemsize, w.storage, w.filters, w.storage != "contiguous"


def _check_words(reader: ShardReader, want: Want, data: bytes) -> None:
    """The whole dataset, under each of its names, and random ranges of random boxes."""
    kind, rng = dtype(want.dtype), np.random.default_rng(5)
    elements = np.frombuffer(data, np.uint8).reshape(*want.shape, kind.itemsize)
    whole = Box.whole(want.shape)
    assert read(reader, want.path, whole, 0, whole.size * kind.words) == data
    for name in want.names:
        out = np.empty(len(data), np.uint8)
        reader.read(name, whole, 0, whole.size * kind.words, out)
        assert out.tobytes() == data
    for _ in range(20):
        edges = [sorted(rng.integers(0, n + 1, 2).tolist()) for n in want.shape]
        box = Box(tuple(a for a, _ in edges), tuple(b for _, b in edges))
        inside = elements[tuple(slice(a, b) for a, b in edges)].tobytes()
        start, stop = sorted(rng.integers(0, box.size * kind.words + 1, 2).tolist())
        assert read(reader, want.path, box, start, stop) == inside[start * kind.word_bytes : stop * kind.word_bytes]


def _check_place(path: Path, dataset: Dataset, data: bytes) -> None:
    """Where a box may be patched, its words lie in the file where ``region`` says; elsewhere the remedy is named."""
    box = Box.whole(dataset.shape)
    if dataset.offset is None and box.size:
        with pytest.raises(GeometryError, match=dataset.storage) as caught:
            region(dataset, box)
        assert "Next: " in str(caught.value) and repr(dataset.path) in str(caught.value)
        return
    where = region(dataset, box)
    assert where.size == len(data) // dtype(dataset.dtype).word_bytes
    if dataset.offset is not None:
        assert where.contiguous and where.base == 0
        assert path.read_bytes()[dataset.offset : dataset.offset + len(data)] == data


def _check_probes(reader: ShardReader, want: Want, dataset: Dataset) -> None:
    """A dataset past a 32-bit limit: the words around each probe, and the file's byte where ``region`` puts it."""
    size, whole = dataset.itemsize, Box.whole(want.shape)
    assert math.prod(want.shape) * size >= 1 << 31
    for k, value in want.probes.items():
        first, last = max(k - 3, 0), min(k + 4, want.shape[0])
        expected = b"".join(want.probes.get(i, bytes(size)) for i in range(first, last))
        assert read(reader, want.path, whole, first, last) == expected
        part = Box((first,), (last,))
        assert read(reader, want.path, part, 0, last - first) == expected
        assert dataset.offset is not None
        with open(reader.inventory.path, "rb") as raw:
            raw.seek(dataset.offset + region(dataset, part).locate(k - first) * size)
            assert raw.read(size) == value
