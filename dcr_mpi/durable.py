"""The only door to fsync and rename: files and directories that are whole or absent after a crash at any point.

A write goes to a temporary file in the same directory, is fsynced, and appears under its name by one atomic step,
after which the directory is fsynced too. Temporary names are ``.tmp-<host>-<pid>-<random>``, so that :func:`sweep`
can tell a dead writer's leavings from everything else. All functions translate operating-system errors by
:func:`dcr_mpi.errors.from_os_error` and keep the original as ``__cause__``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .errors import Conflict, NotReady, ResourceError, from_os_error

TEMP_PREFIX = ".tmp-"
Buffer = bytes | bytearray | memoryview
StrPath = str | os.PathLike[str]
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_DIR_FSYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def _always() -> None:
    """Nothing stands in the way."""


@contextmanager
def _doing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os_error(error, what) from error


def write_once(path: StrPath, data: Buffer) -> bool:
    """Create ``path`` with ``data`` if and only if nobody did before, atomically and durably.

    Returns True when created by this call, False when the path exists already (untouched, and durable). Raises
    ResourceError (full, broken or read-only medium), UsageError (no permission) or NotReady (no such directory);
    then nothing of ``data`` is visible under ``path``.
    """
    with _doing(f"creating {path}"):
        temp = _write_temp(path, data)
        try:
            os.link(temp, path)
            created = True
        except FileExistsError:
            created = os.path.samefile(temp, path)  # NFS: the reply to our own link was lost and the call sent again
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            created = _rename_no_replace(temp, path)
        finally:
            with suppress(FileNotFoundError):  # gone already where it was renamed instead of linked
                os.unlink(temp)
    fsync_dir(_parent(path))
    return created


def replace(path: StrPath, data: Buffer, allowed: Callable[[], None] = _always) -> None:
    """Give ``path`` the content ``data``: readers see the old file or the new one, also after a crash.

    ``allowed`` is called when the new content is durable, just before it takes the name; what it raises leaves the
    old file.
    """
    with _doing(f"replacing {path}"):
        temp = _write_temp(path, data)
        try:
            allowed()
            os.replace(temp, path)
        except BaseException:
            os.unlink(temp)
            raise
    fsync_dir(_parent(path))


def rename(temp: StrPath, path: StrPath) -> None:
    """Give a finished and synced file its name, in the same directory, durably; what had that name is replaced."""
    with _doing(f"renaming {temp} to {path}"):
        os.replace(temp, path)
    fsync_dir(_parent(path))


def copy(source: StrPath, path: StrPath, allowed: Callable[[], None] = _always) -> None:
    """Give ``path`` the content of a file, as :func:`replace` does, without holding it in memory."""
    with _doing(f"copying {source} to {path}"):
        temp = _write_temp(path, b"")
        try:
            shutil.copyfile(source, temp)
            with open(temp, "rb+") as file:
                os.fsync(file.fileno())
            allowed()
            os.replace(temp, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp)
            raise
        fsync_dir(_parent(path))


def lock(path: StrPath, why: str) -> int:
    """Take the one lock on a file, which is made; it goes with the process. The descriptor is for :func:`unlock`.

    Raises
    ------
    Conflict
        Another process has it; ``why`` only one may.
    """
    with _doing(f"locking {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(
                f"lock {path}", found="another process that has it", expected="none", remedy=f"{why}: stop the other"
            ) from None
        return fd


def unlock(fd: int) -> None:
    """Give a lock back."""
    os.close(fd)


def map_file(path: StrPath, size: int) -> mmap.mmap:
    """A file of ``size`` bytes, made anew (as zeros) unless it has that size, mapped for reading and writing.

    Raises
    ------
    ResourceError
        No room: it is taken now, where it is an error, and not at some write into the map, where it is a signal.
    """
    with _doing(f"mapping {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, size)
                os.fsync(fd)
                fsync_dir(_parent(path))
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)


def sync_map(mapped: mmap.mmap) -> None:
    """Make what was written into a map durable."""
    with _doing("writing a mapped file"):
        mapped.flush()


def sync(fd: int) -> None:
    """fsync an open file. Raises OSError: only the caller knows the file's name and what is lost."""
    os.fsync(fd)


def remove(path: StrPath) -> None:
    """Unlink a file durably; a missing one is fine.

    Where the directory was removed meanwhile, which it was as it was empty, that removal is made durable instead.
    """
    with _doing(f"removing {path}"), suppress(FileNotFoundError):
        os.unlink(path)
        folder = _parent(path)
        while True:
            try:
                return fsync_dir(folder)
            except NotReady:
                folder = _parent(folder)


def make_dirs(path: StrPath) -> None:
    """``mkdir -p`` that survives a crash: the parent of every directory made here is fsynced."""
    if os.path.isdir(path):
        return
    parent = _parent(path)
    make_dirs(parent)
    with (
        _doing(f"making directory {path}"),
        suppress(FileExistsError),
    ):  # another process was faster; a file shows later
        os.mkdir(path)
    fsync_dir(parent)


def fsync_dir(path: StrPath) -> None:
    """Make names made, renamed or removed in a directory durable (nothing where the file system has no such call)."""
    with _doing(f"syncing directory {path}"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_DIR_FSYNC:
                raise
        finally:
            os.close(fd)


def sweep(folder: StrPath, older_than_s: float) -> int:
    """Unlink temporary files below ``folder`` not modified for ``older_than_s`` seconds; returns how many.

    Directories that may not be read are passed over.
    """
    dropped, limit = 0, time.time() - older_than_s
    for where, _, names in os.walk(folder):
        for path in (os.path.join(where, name) for name in names if name.startswith(TEMP_PREFIX)):
            with _doing(f"sweeping {path}"), suppress(FileNotFoundError):  # a writer finished, or another sweep
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_mtime <= limit:
                    os.unlink(path)
                    dropped += 1
    return dropped


def _parent(path: StrPath) -> str:
    return os.path.dirname(os.path.abspath(path))


def _write_temp(path: StrPath, data: Buffer) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64]
    temp = os.path.join(_parent(path), f"{TEMP_PREFIX}{host}-{os.getpid()}-{secrets.token_hex(8)}")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb", buffering=0) as file:  # NFS and quotas may report a failed write only at close
            view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
            while view:
                view = view[file.write(view) :]
            os.fsync(fd)
    except BaseException:
        os.unlink(temp)
        raise
    return temp


def _rename_no_replace(temp: str, path: StrPath) -> bool:
    """The exclusive step for file systems without hard links (FAT, some FUSE): renameat2 with RENAME_NOREPLACE."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(temp), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code in (errno.EINVAL, errno.ENOSYS):
        raise ResourceError(f"creating {path}", found="a file system with neither hard links nor exclusive rename",
                            remedy="put this directory on a POSIX file system, or use an s3:// store")  # fmt: skip
    raise OSError(code, os.strerror(code))
