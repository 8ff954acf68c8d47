"""New shards: what was asked for, in the form that can be patched in place, and nothing left after a refusal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import DcrError, GeometryError, ResourceError
from dcr_mpi.hdf5 import ShardReader, create_shard, inventory, region
from dcr_mpi.model import Box, DatasetLayout, ShardLayout
from tests.zoo.words import KINDS

_NAMES = [*KINDS, "raw1", "raw2", "raw5", "raw16"]


def layout(
    *datasets: tuple[str, tuple[int, ...], str] | tuple[str, tuple[int, ...], str, tuple[str, ...]],
) -> ShardLayout:
    return ShardLayout("shard.h5", tuple(DatasetLayout(*d[:3], (), (), *d[3:]) for d in datasets))


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    asked = layout(*((f"t/{name}", (3, 5), name) for name in _NAMES))
    found = create_shard(path, asked, step=9)
    assert inventory(path) == found
    assert [(d.path, d.dtype, d.shape, d.storage) for d in found.datasets] == sorted(
        (f"t/{n}", n, (3, 5), "contiguous") for n in _NAMES
    )
    assert found.step == 9
    with h5py.File(path) as file:
        for name in _NAMES:
            kind = file[f"t/{name}"].id.get_type()
            assert kind.get_size() == dtype(name).itemsize
            if name in KINDS:
                assert kind.equal(KINDS[name]), name


def test_the_same_layout_gives_the_same_bytes_whenever(tmp_path: Path) -> None:
    """Two creations a second apart: HDF5 writes times, in seconds, into groups unless it is told not to."""
    asked = layout(("a/b/w", (3000,), "bf16", ("a/c/tied", "top")), ("v", (2,), "f32"))
    create_shard(tmp_path / "one.h5", asked, step=3)
    time.sleep(1.1)
    create_shard(tmp_path / "two.h5", asked, step=3)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_patched_in_place_read_by_the_library(tmp_path: Path) -> None:
    """Words written at ``region``'s offsets are what h5py reads."""
    path = tmp_path / "new.h5"
    found = create_shard(path, layout(("w", (8, 6), "f32"), ("scalar", (), "i64"), ("half", (4,), "bf16")))
    scalar = next(d for d in found.datasets if d.path == "scalar")
    w = next(d for d in found.datasets if d.path == "w")
    where = region(w, Box((2, 1), (5, 4)))
    assert w.offset is not None and scalar.offset is not None
    with path.open("r+b") as raw:
        for k in range(where.size):
            raw.seek(w.offset + where.locate(k) * 4)
            raw.write(np.float32(k + 1).tobytes())
        raw.seek(scalar.offset)
        raw.write(np.int64(-5).tobytes())
    with h5py.File(path) as file:
        expected = np.zeros((8, 6), np.float32)
        expected[2:5, 1:4] = np.arange(1, 10).reshape(3, 3)
        assert (file["w"][...] == expected).all() and file["scalar"][()] == -5
        assert file["half"].dtype == np.float32 and not file["half"][...].any()


def test_zero_filled_allocated_aligned_and_reproducible(tmp_path: Path) -> None:
    asked = layout(("a", (5,), "u8"), ("big", (1 << 20,), "bf16"), ("mid", (4096,), "u8"), ("z", (3,), "f64"))
    found = create_shard(tmp_path / "one.h5", asked, step=3)
    offsets = {d.path: d.offset for d in found.datasets if d.offset is not None}
    assert offsets["big"] % 4096 == offsets["mid"] % 4096 == 0
    assert os.stat(tmp_path / "one.h5").st_blocks * 512 >= 2 << 20, "a full disk must show before an apply"
    with ShardReader(tmp_path / "one.h5", found) as reader:
        out = np.ones(2 << 20, np.uint8)
        reader.read("big", Box((0,), (1 << 20,)), 0, 1 << 20, out)
        assert not out.any()
    create_shard(tmp_path / "two.h5", asked, step=3)
    with h5py.File(tmp_path / "two.h5") as file:
        assert h5py.h5o.get_info(file["big"].id).ctime == 0, "times would make the bytes differ"
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "two.h5").read_bytes()


def test_ties_are_hard_links(tmp_path: Path) -> None:
    found = create_shard(tmp_path / "new.h5", layout(("embed/w", (4,), "bf16", ("head/w", "z"))))
    assert [(d.path, d.names) for d in found.datasets] == [("embed/w", ("head/w", "z"))]
    with h5py.File(tmp_path / "new.h5") as file:
        assert file["embed/w"] == file["head/w"] == file["z"]


def test_shapes_without_elements(tmp_path: Path) -> None:
    found = create_shard(tmp_path / "new.h5", layout(("a", (0,), "f32"), ("b", (0, 3), "bf16"), ("c", (), "bool")))
    assert [(d.shape, d.offset is None) for d in found.datasets] == [((0,), True), ((0, 3), True), ((), False)]
    assert region(found.datasets[1], Box((0, 0), (0, 3))).size == 0
    assert create_shard(tmp_path / "empty.h5", layout()).datasets == ()


def test_odd_names(tmp_path: Path) -> None:
    names = sorted(["unicode/ěščř-重み-🙂", "new\nline", "x" * 3000, "/".join(["deep"] * 600), "..", "a b\t%s{}"])
    found = create_shard(tmp_path / "new.h5", layout(*((n, (2,), "u8") for n in names)))
    assert [d.path for d in found.datasets] == names


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (layout(("a", (2,), "f32"), ("a/b", (2,), "f32")), ("'a/b'", "'a' as a dataset")),
        (layout(("x/a/b", (2,), "f32"), ("q", (2,), "f32", ("x/a",))), ("'x/a/b'", "'x/a' as a dataset")),
        (layout(("a//b", (2,), "f32")), ("'a//b'", "single slashes")),
        (layout(("/a", (2,), "f32")), ("'/a'", "empty part")),
        (layout(("", (2,), "f32")), ("''", "empty part")),
        (layout(("a/./b", (2,), "f32")), ("'a/./b'",)),
        (layout(("a\0b", (2,), "f32")), ("NUL",)),
        (layout(("a\udc80", (2,), "f32")), ("half a character",)),
        (layout(("a", (2,), "f32"), ("a", (3,), "f32")), ("['a'] more than once",)),
        (layout(("b", (2,), "f32", ("a",))), ("'a'", "first of a dataset's names")),
        (layout(("a", (1,) * 33, "f32")), ("'a'", "33 dimensions")),
        (layout(("a", (2,), "float")), ("'float'", "bf16")),
        (layout(("a", (1 << 62, 4), "f64")), ("'a'", "2^63")),
    ],
)
def test_refused_and_nothing_left(asked: ShardLayout, words: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(GeometryError) as caught:
        create_shard(tmp_path / "new.h5", asked)
    assert [w for w in words if w not in str(caught.value)] == []
    assert os.listdir(tmp_path) == []


def test_a_disk_that_cannot_hold_it(tmp_path: Path) -> None:
    """Larger than any file system here: refused when the space is taken, and removed."""
    with pytest.raises(ResourceError, match=r"EFBIG|ENOSPC"):
        create_shard(tmp_path / "new.h5", layout(("a", (1 << 46,), "u8")))
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.h5"
    path.write_bytes(b"precious")
    with pytest.raises(DcrError, match="EEXIST"):
        create_shard(path, layout(("a", (2,), "f32")))
    assert path.read_bytes() == b"precious"
