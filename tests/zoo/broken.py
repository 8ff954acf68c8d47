"""Shards that are not whole, the crashed writers being real processes that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py

from dcr_mpi.errors import CorruptInput

from .words import KINDS, ZOO, Refusal, ZooCase, case, noise, put

_WRITER = """
import sys, time
import h5py, numpy as np
path, libver, after = sys.argv[1:]
file = h5py.File(path, "w", libver=(libver, "latest"))
file.attrs["step"] = 3
for k in range(8):
    file.create_dataset(f"layers/{k}/w", data=np.full((64, 256), k, np.float32))
if after in ("flush", "swmr"):
    file.flush()
if after == "swmr":
    file.swmr_mode = True
if after in ("reopen", "open"):
    file.close()
    file = h5py.File(path, "r+")
if after == "reopen":
    file["layers/0/w"][...] = 9
    file.flush()
print("written", flush=True)
time.sleep(60)
"""


def start_writer(path: Path, libver: str = "earliest", after: str = "") -> subprocess.Popen[str]:
    """A process that wrote a shard and has it open.

    ``after`` that it did nothing ("") or one of "flush", "swmr", "open" (closed it and opened it again) and "reopen"
    (and changed it too).
    """
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), libver, after], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "written\n"
    return child


def _killed(libver: str, after: str, *words: str) -> Callable[[Path], ZooCase]:
    def build(path: Path) -> ZooCase:
        with start_writer(path, libver, after) as child:
            child.kill()
        return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", path.name, *words)))

    return build


_FLAG = "consistency flag"
ZOO.update({
    "killed_before_flush": _killed("earliest", "", _FLAG),
    "killed_before_flush_new_format": _killed("v110", "", _FLAG),
    "killed_after_flush": _killed("earliest", "flush", _FLAG),
    "killed_after_flush_new_format": _killed("v110", "flush", _FLAG),
    "killed_swmr": _killed("latest", "swmr", _FLAG),
    "killed_while_changing_a_whole_shard": _killed("v110", "reopen", _FLAG),
})  # fmt: skip


def _whole(path: Path) -> int:
    with h5py.File(path, "w") as file:
        put(file, "w", KINDS["f32"], (64, 64), noise(64 * 64 * 4, 31))
    return path.stat().st_size


def _cut(to: Callable[[int], int]) -> Callable[[Path], ZooCase]:
    def build(path: Path) -> ZooCase:
        size = _whole(path)
        os.truncate(path, to(size))
        words = (f"{to(size)} bytes", f"{size} bytes" if to(size) else "closed HDF5 file")
        return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", path.name, *words)))

    return build


ZOO.update({
    "truncated_to_0": _cut(lambda size: 0), "truncated_to_96": _cut(lambda size: 96),
    "truncated_midway": _cut(lambda size: size // 2), "truncated_by_1": _cut(lambda size: size - 1),
})  # fmt: skip


@case
def truncated_in_superblock(path: Path) -> ZooCase:
    _whole(path)
    os.truncate(path, 12)
    return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", "12 bytes", "superblock")))


@case
def longer_than_it_says(path: Path) -> ZooCase:
    """What a writer looks like that clears no flag: bytes beyond the end that its superblock knows."""
    size = _whole(path)
    with path.open("ab") as raw:
        raw.write(bytes(100))
    return ZooCase(
        path, refused=Refusal(CorruptInput, ("shard incomplete", f"{size + 100} bytes", f"{size}", "h5repack"))
    )


@case
def dataset_past_the_end(path: Path) -> ZooCase:
    """The superblock agrees with the cut file (somebody "repaired" it); the dataset still does not fit."""
    size = _whole(path)
    os.truncate(path, size - 1000)
    with path.open("r+b") as raw:
        raw.seek(40)  # superblock version 0: end-of-file address
        raw.write((size - 1000).to_bytes(8, "little"))
    return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete", path.name, "'w'")))


@case
def superblock_only(path: Path) -> ZooCase:
    """As many bytes as it says, and a sound superblock, but the metadata never reached the disk."""
    size = _whole(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:96] + bytes(size - 96))
    return ZooCase(path, refused=Refusal(CorruptInput, ("shard incomplete or damaged", path.name)))


@case
def all_zeros(path: Path) -> ZooCase:
    path.write_bytes(bytes(70_000))
    return ZooCase(path, refused=Refusal(CorruptInput, ("not an HDF5 file", "cut short", "70000 bytes")))


@case
def other_file(path: Path) -> ZooCase:
    path.write_text("version https://git-lfs.example/spec/v1\noid sha256:0\nsize 12345\n")
    return ZooCase(path, refused=Refusal(CorruptInput, ("not an HDF5 file", path.name)))


@case
def directory(path: Path) -> ZooCase:
    path.mkdir()
    return ZooCase(path, refused=Refusal(CorruptInput, ("no regular file",)))


@case
def pipe(path: Path) -> ZooCase:
    """Opening one would wait for a writer for ever."""
    os.mkfifo(path)
    return ZooCase(path, refused=Refusal(CorruptInput, ("no regular file",)))
