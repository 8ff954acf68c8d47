"""A shard that its writer has not finished is refused, whoever the writer was and whenever it died."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from dcr_mpi.errors import CorruptInput, GeometryError, NotReady, UsageError
from dcr_mpi.hdf5 import inventory
from dcr_mpi.hdf5.inventory import _describe
from tests.zoo import ZOO
from tests.zoo.broken import start_writer

_STEADY = """
import sys
import h5py, numpy as np
file = h5py.File(sys.argv[1], "w", libver=(sys.argv[2], "latest"))
print("begun", flush=True)
for k in range(10**6):
    file.create_dataset(f"layers/{k}/w", data=np.full((32, 256), k, np.float32))
    if k % 7 == 3:
        file.flush()
"""


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_writer_killed_in_the_middle(libver: str, delay: float, tmp_path: Path) -> None:
    path = tmp_path / "shard.h5"
    with subprocess.Popen(
        [sys.executable, "-c", _STEADY, str(path), libver], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "begun\n"
        time.sleep(delay * random.uniform(0.5, 1.5))
        writer.kill()
    raw = path.read_bytes()
    with pytest.raises(CorruptInput, match="shard incomplete"):
        inventory(path)
    assert path.read_bytes() == raw


@pytest.mark.parametrize(("libver", "after"), [("earliest", "flush"), ("v110", "flush"), ("latest", "swmr")])
def test_still_open_for_writing(libver: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / "shard.h5"
    with start_writer(path, libver, after) as writer:
        try:
            with pytest.raises(CorruptInput, match=r"shard incomplete.*(open for writing|consistency flag)"):
                inventory(path)
        finally:
            writer.kill()


def test_the_lock_tells_a_live_writer_from_a_dead_one(tmp_path: Path) -> None:
    """A whole shard that somebody opened to change: wait for the one, write again after the other."""
    path = tmp_path / "shard.h5"
    with start_writer(path, "earliest", "open") as writer:
        try:
            with pytest.raises(CorruptInput, match="open for writing by another process"):
                inventory(path)
        finally:
            writer.kill()
            writer.wait()
    with pytest.raises(CorruptInput, match="consistency flag"):
        inventory(path)


def test_a_refusal_lets_go_of_the_file(tmp_path: Path) -> None:
    """Also while its traceback, and the handles in it, are alive."""
    case = ZOO["vlen_string"](tmp_path / "shard.h5")
    with pytest.raises(GeometryError) as caught:
        inventory(case.path)
    with h5py.File(case.path, "r+") as file:
        del file["odd"]
    assert caught.value.__traceback__ is not None
    assert [d.path for d in inventory(case.path).datasets] == ["fine"]


def test_still_open_in_this_process_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is asked for by us, so switching off the library's own does not switch off the check."""
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
    path = tmp_path / "shard.h5"
    with h5py.File(path, "w", locking=True) as file:
        file["w"] = np.arange(4)
    with h5py.File(path, "r+", locking=True), pytest.raises(CorruptInput, match="shard incomplete"):
        inventory(path)
    assert inventory(path).datasets[0].path == "w"


def test_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "shard.h5"
    with h5py.File(path, "w") as file:
        file["w"] = np.arange(4)
    with h5py.File(path, "r") as file:
        mine = file["w"]
        assert inventory(path) == inventory(path)
        assert mine[3] == 3, "closing ours closed another's"
    with h5py.File(path, "r+") as file:  # and none of ours is left to keep a writer out
        file["w"][0] = 1


def test_dataset_past_the_end_is_seen_even_where_the_library_does_not(tmp_path: Path) -> None:
    path = tmp_path / "shard.h5"
    with h5py.File(path, "w") as file:
        file["w"] = np.arange(1000)
        end = file["w"].id.get_offset() + 8000
        _describe(file["w"].id, "dataset 'w'", str(tmp_path), end)
        with pytest.raises(CorruptInput, match=f"shard incomplete: dataset 'w'.*{end - 1} bytes.*{end}"):
            _describe(file["w"].id, "dataset 'w'", str(tmp_path), end - 1)


def test_absent_and_forbidden_are_other_errors(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="ENOENT"):
        inventory(tmp_path / "none.h5")
    path = tmp_path / "shard.h5"
    path.write_bytes(b"")
    path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:  # who may read everything
            os.seteuid(65534)
        with pytest.raises(UsageError, match="EACCES"):
            inventory(path)
    finally:
        if root:
            os.seteuid(0)
