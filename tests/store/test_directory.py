"""The directory store on real file systems: deaths at every step, full and read-only media, links, cleaners."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dcr_mpi.errors import ResourceError, StoreDenied, UsageError
from dcr_mpi.store import Store, open_store

from .conftest import ROOT, Place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(str(root))


def leftovers(root: Path) -> list[Path]:
    return [p for p in root.rglob("*") if p.name.startswith(".tmp-")]


def test_killed_after_every_step(tmp_path: Path) -> None:
    """Whole or absent after SIGKILL at each durable step; the next run finishes, and a sweep leaves nothing else."""
    deaths = 0
    for step in range(1, 100):
        place = Place(f"file://{tmp_path}/store-{step}", None)
        root, body = tmp_path / f"store-{step}", b"\5" * 300_000
        child = place.child("die", key="a/b/c", fill=5, size=len(body), step=step)
        out, err = child.communicate(timeout=60)
        store = place.open()
        found = store.get("a/b/c")
        assert found in (None, body)
        if child.returncode == 0:
            assert json.loads(out) is True and found == body and not leftovers(root)
            break
        assert child.returncode == -signal.SIGKILL, err
        deaths += 1
        store.sweep("", 0)
        assert not leftovers(root)
        assert store.get("a/b/c") == found
        assert store.put_once("a/b/c", body) and store.get("a/b/c") == body
        assert not leftovers(root)
    assert deaths >= 10  # three folders, the file, its link and unlink, and the syncs between


def in_child(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """Run ``code`` in another process; returns what it printed."""
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    ran = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


LIMITED = """
import resource, signal, sys
from dcr_mpi.errors import DcrError
from dcr_mpi.store import open_store
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if sys.argv[2] == "die":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    open_store(sys.argv[1]).put_once("k", bytes(3 << 20))
except DcrError as error:
    print(type(error).__name__, error)
"""


def test_a_write_that_stops_in_the_middle(root: Path, store: Store) -> None:
    """The kernel takes 1 of 3 MiB and then fails the write, or kills the process in it."""
    assert in_child(LIMITED, root, "live").startswith(f"ResourceError put file://{root}/k: found EFBIG")
    assert not leftovers(root) and store.stat("k") is None
    dead = subprocess.run([sys.executable, "-c", LIMITED, str(root), "die"], check=False, cwd=ROOT, timeout=60)
    assert dead.returncode == -signal.SIGXFSZ
    assert [p.stat().st_size for p in leftovers(root)] == [1 << 20] and store.stat("k") is None
    assert store.sweep("", 3600) == 0 and store.sweep("", 0) == 1
    assert not leftovers(root) and store.put_once("k", bytes(3 << 20))


FULL_THEN_READ_ONLY = """
import os, subprocess, sys
from dcr_mpi.errors import DcrError
from dcr_mpi.store import open_store
root = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", root], check=True)
store = open_store(root)
def attempt(key, size):
    try:
        print(store.put_once(key, bytes(size)), end=" ")
    except DcrError as error:
        print(type(error).__name__, error.args[0].split("found ")[1].split(" ")[0], end=" ")
attempt("small", 1000)
attempt("large", 2 << 20)
print(store.stat("large"), sorted(os.listdir(root)), end=" ")
subprocess.run(["mount", "-o", "remount,ro", root], check=True)
attempt("other", 1000)
attempt("small", 1000)
attempt("small", 1001)
print(store.get("small") == bytes(1000))
"""


def can_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "-rm", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="no mount namespaces for this user")
def test_a_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    out = in_child(FULL_THEN_READ_ONLY, tmp_path, prefix=("unshare", "-rm"))
    assert out == "True ResourceError ENOSPC None ['small'] ResourceError EROFS True False True"


NO_PERMISSION = """
import os, sys
from dcr_mpi.errors import DcrError
from dcr_mpi.store import open_store
root = sys.argv[1]
os.makedirs(root + "/open/closed")
open(root + "/open/secret", "w").close()
os.chmod(root + "/open/secret", 0)
os.chmod(root + "/open/closed", 0o555)
os.chmod(root, 0o755)
if os.geteuid() == 0:
    os.setuid(65534)  # root may do everything
store = open_store(root)
for call in (
    lambda: store.put_once("open/closed/k", b""),
    lambda: store.get("open/secret"),
    lambda: store.put_once("open/secret", b""),
):
    try:
        print(call())
    except DcrError as error:
        print(type(error).__name__, error.code)
"""


def test_no_permission_is_denied_not_absent() -> None:
    with tempfile.TemporaryDirectory() as root:  # not under pytest's own folder, which only its owner may enter
        assert in_child(NO_PERMISSION, root).split("\n") == ["StoreDenied 21"] * 3


NO_LINKS = """
import errno, os, sys
from dcr_mpi.store import open_store
def hook(event, args):
    if event == "os.link":
        raise OSError(getattr(errno, sys.argv[2]), "no hard links here")
sys.addaudithook(hook)
store = open_store(sys.argv[1])
puts = [store.put_once("a/k", data) for data in (b"first", b"first", b"other")]
print(*puts, store.get("a/k"))
from dcr_mpi import durable
print(durable.write_once(sys.argv[1] + "/a/k", b"other"), durable.write_once(sys.argv[1] + "/a/new", b"x"))
"""


@pytest.mark.parametrize("name", ["EPERM", "EOPNOTSUPP", "ENOSYS", "EMLINK"])
def test_without_hard_links_an_exclusive_rename(root: Path, name: str) -> None:
    """The interpreter's own hook refuses the link as such a file system does; the rename is the kernel's."""
    assert in_child(NO_LINKS, root, name).split("\n") == ["True True False b'first'", "False True"]
    assert not leftovers(root) and (root / "a/k").read_bytes() == b"first"


def test_links_lead_nowhere(root: Path, store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "new")
    for key in ("folder/secret", "folder/new", "file", "dangling"):
        for call in (lambda k=key: store.get(k), lambda k=key: store.stat(k), lambda k=key: store.put_once(k, b"x")):
            with pytest.raises(UsageError, match="symbolic link"):
                call()
    with pytest.raises(UsageError, match="symbolic link"):
        store.sweep("folder", 0)
    (outside / ".tmp-h-1-x").write_bytes(b"")
    assert store.sweep("", 0) == 0
    assert sorted(os.listdir(outside)) == [".tmp-h-1-x", "secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = open_store(str(tmp_path / "link"))
    assert store.put_once("k", b"x") and store.url == f"file://{tmp_path}/disk"
    assert (tmp_path / "disk/k").read_bytes() == b"x"


def test_things_that_are_no_objects(root: Path, store: Store) -> None:
    store.put_once("a/b", b"x")
    os.mkfifo(root / "fifo")
    for key in ("a", "fifo"):
        assert store.get(key) is None and store.stat(key) is None
        with pytest.raises(UsageError, match="no regular file"):
            store.put_once(key, b"x")
    assert store.get("a/b/c") is None and store.stat("a/b/c") is None
    with pytest.raises(UsageError, match="an object where the key needs a folder"):
        store.put_once("a/b/c", b"x")
    with pytest.raises(UsageError, match="an object where the key needs a folder"):
        store.put_once("a/b/c/d", b"x")


def test_folders_that_are_cleaned_away_come_back(root: Path, store: Store) -> None:
    store.put_once("versions/1/k", b"x")
    shutil.rmtree(root / "versions")
    assert store.put_once("versions/1/k", b"y") and store.get("versions/1/k") == b"y"


def test_several_delete_the_last_objects_of_a_folder(root: Path, store: Store) -> None:
    """Whoever finds the folder gone was overtaken by one that found it empty: the object is gone all the same."""
    with ThreadPoolExecutor(4) as pool:
        for step in range(60):
            keys = [f"p/{step}/{k}" for k in range(4)]
            for key in keys:
                store.put_once(key, b"x")
            list(pool.map(store.delete, keys))
    assert list(root.iterdir()) == []


def test_a_temporary_file_swept_in_mid_put_is_written_again(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, calls = os.link, []

    def swept_before(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 1:
            assert open_store(str(root)).sweep("", 0) == 1
        link(source, target)

    monkeypatch.setattr(os, "link", swept_before)
    assert store.put_once("a/k", b"x") and len(calls) == 2
    assert store.get("a/k") == b"x" and not leftovers(root)


def test_new_files_follow_the_umask(root: Path, store: Store) -> None:
    before = os.umask(0o027)
    try:
        store.put_once("a/k", b"x")
    finally:
        os.umask(before)
    assert (root / "a/k").stat().st_mode & 0o777 == 0o640
    assert (root / "a").stat().st_mode & 0o777 == 0o750


def test_errors_keep_the_cause(root: Path, store: Store) -> None:
    root.write_bytes(b"a file where the root should be")
    with pytest.raises(UsageError, match="needs a folder") as caught:
        store.put_once("k", b"x")
    assert isinstance(caught.value.__cause__.__cause__, OSError)  # type: ignore[union-attr]
    assert caught.value.__cause__.__cause__.errno == errno.ENOTDIR  # type: ignore[union-attr]
    assert not isinstance(caught.value, (ResourceError, StoreDenied))
