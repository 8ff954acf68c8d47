"""The durable primitives by themselves; the directory store's tests kill and starve them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dcr_mpi import durable
from dcr_mpi.errors import NotReady, ResourceError


def test_write_once_creates_once(tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    assert durable.write_once(path, b"first")
    assert durable.write_once(path, b"first") is False  # created is what it tells, unlike a store's put
    assert durable.write_once(path, b"other") is False
    assert os.listdir(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"first"


def test_write_once_of_many_threads_has_one_creator(tmp_path: Path) -> None:
    created: list[int] = []
    start = threading.Barrier(8)

    def write(n: int) -> None:
        start.wait()
        if durable.write_once(str(tmp_path / "f"), bytes([n]) * 4096):
            created.append(n)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1 and (tmp_path / "f").read_bytes() == bytes(created) * 4096


def test_replace_is_old_or_new_to_a_reader(tmp_path: Path) -> None:
    path, stop, torn = tmp_path / "f", threading.Event(), []
    durable.replace(str(path), b"0" * 10_000)

    def read() -> None:
        while not stop.is_set():
            body = path.read_bytes()
            if len(body) != 10_000 or len(set(body)) != 1:
                torn.append(body)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(30):
        durable.replace(str(path), b"%d" % (n % 10) * 10_000)
    stop.set()
    reader.join()
    assert not torn and path.read_bytes() == b"9" * 10_000 and os.listdir(tmp_path) == ["f"]


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    durable.make_dirs("a/b")
    assert durable.write_once("a/b/f", memoryview(b"x")) and durable.write_once("g", b"")
    durable.replace("g", bytearray(b"y"))
    assert (tmp_path / "a/b/f").read_bytes() == b"x" and (tmp_path / "g").read_bytes() == b"y"
    durable.remove("g")
    durable.remove("g")
    assert os.listdir(tmp_path) == ["a"]


def test_errors_are_in_the_words_of_the_house(tmp_path: Path) -> None:
    for call in (durable.write_once, durable.replace):
        with pytest.raises(NotReady, match="ENOENT"):
            call(str(tmp_path / "no/f"), b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="EISDIR"):
        durable.replace(str(tmp_path / "folder"), b"x")
    assert os.listdir(tmp_path) == ["folder"]  # and no temporary file stays behind


def test_make_dirs_again_and_in_a_race(tmp_path: Path) -> None:
    target = str(tmp_path / "a/b/c/d")
    threads = [threading.Thread(target=durable.make_dirs, args=(target,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    durable.make_dirs(target)
    assert os.path.isdir(target)


def test_sweep_drops_old_temporary_files_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.tmp-folder").mkdir()
    for name in ("a/.tmp-h-1-old", "a/.tmp-h-1-new", "a/tmp-h-1-old", "object"):
        (tmp_path / name).write_bytes(b"x")
    for name in ("a/.tmp-h-1-old", "a/tmp-h-1-old", "object", "a/.tmp-folder"):
        os.utime(tmp_path / name, (1, 1))
    assert durable.sweep(str(tmp_path), 60) == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == [".tmp-folder", ".tmp-h-1-new", "a", "object", "tmp-h-1-old"]
    assert durable.sweep(str(tmp_path / "absent"), 0) == 0
