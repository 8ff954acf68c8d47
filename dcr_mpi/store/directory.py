"""A directory as a store: every object is a file, created whole and exclusively by :mod:`dcr_mpi.durable`.

For one machine or a shared POSIX file system (NFS, Lustre). A file system that shows names late only delays
readers: absence means "not yet". Nothing below the root is followed out of it: a symbolic link in a key's way is
refused.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from .. import durable
from ..errors import CorruptInput, DcrError, NotReady, StoreDenied, StoreUnavailable, UsageError, from_os_error
from .api import Buffer, Entry, Stat, check_key, check_limit, check_range, is_key

_COMPARE = 4 << 20
_PASSING = {errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EREMOTEIO}


class DirectoryStore:
    """See :class:`dcr_mpi.store.api.Store`. ``root`` is made, with its parents, by the first put."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._synced: set[str] = set()
        self.url = "file://" + quote(self._root)

    def put_once(self, key: str, data: Buffer) -> bool:
        """Write a temporary file beside ``key``, sync it, link it to its name, sync the directory."""
        path = self._path(key)
        with self._translated("put", key):
            if not os.path.lexists(path):
                try:
                    created = self._create(path, data)
                except NotReady:  # the folder or the temporary file was cleaned away under our hands: once more
                    self._synced.clear()
                    created = self._create(path, data)
                if created:
                    return True
            same = self._holds(path, data)
            durable.fsync_dir(os.path.dirname(path))  # the winner may have died before its own
            return same

    def get(self, key: str, start: int = 0, stop: int | None = None, *, limit: int | None = None) -> bytes | None:
        """Read by position from the file's length at opening; see the contract for ranges and ``limit``."""
        path = self._path(key)
        check_range(start, stop)
        if start == stop:
            return b""
        with self._translated("get", key), self._opened(path) as (fd, size):
            if fd < 0:
                return None
            stop = size if stop is None else min(stop, size)
            length = max(0, stop - start)
            check_limit(f"get {self.url}/{key}", length, limit)
            with open(fd, "rb", buffering=0, closefd=False) as file:
                file.seek(start)
                data = file.read(length) if length else b""
                while len(data) < length and (more := file.read(length - len(data))):  # one read stops at 2 GiB
                    data += more
            if len(data) < length:
                raise CorruptInput(
                    f"get {self.url}/{key}",
                    found=f"{len(data)} bytes",
                    expected=f"{length}",
                    remedy="the file was cut while it was read: restore it, objects never change",
                )
            return data

    def stat(self, key: str) -> Stat | None:
        """Length of the file, or None where there is no such regular file."""
        path = self._path(key)
        with self._translated("stat", key), self._opened(path) as (fd, size):
            return None if fd < 0 else Stat(size)

    def sweep(self, prefix: str, older_than_s: float) -> int:
        """Unlink temporary files of dead writers; their age is the file's own time of last write."""
        return durable.sweep(self._path(prefix) if prefix else self._root, older_than_s)

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Regular files, folder by folder; links are not followed. Age: the time since the last write."""
        with self._translated("list", prefix):
            yield from self._walk(self._path(prefix) if prefix else self._root, prefix)

    def _walk(self, folder: str, prefix: str) -> Iterator[Entry]:
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in sorted(os.listdir(folder)):
                key = f"{prefix}/{name}" if prefix else name
                with suppress(FileNotFoundError):
                    found = os.lstat(os.path.join(folder, name)) if is_key(key) else None
                    if found is not None and stat.S_ISDIR(found.st_mode):
                        yield from self._walk(os.path.join(folder, name), key)
                    elif found is not None and stat.S_ISREG(found.st_mode):
                        yield Entry(key, found.st_size, max(0.0, time.time() - found.st_mtime))

    def ahead_s(self, key: str) -> float:
        """By the time that the file system itself gives a file which is touched."""
        path = self._path(key)
        with self._translated("touch", key):
            begun = time.time()
            os.utime(path)
            return os.stat(path).st_mtime - (begun + time.time()) / 2

    def delete(self, key: str) -> None:
        """Unlink the file, then the folders that are left empty."""
        path = self._path(key)
        with self._translated("delete", key):
            if self.stat(key) is None:
                return
            durable.remove(path)
            folder = os.path.dirname(path)
            with suppress(OSError):  # not empty, or somebody puts something there again
                while folder != self._root:
                    os.rmdir(folder)
                    self._synced.discard(folder)
                    folder = os.path.dirname(folder)

    def _path(self, key: str) -> str:
        path = os.path.join(self._root, *check_key(key).split("/"))
        if os.path.realpath(path) != path:
            raise UsageError(
                f"store path {path}",
                found="a symbolic link below the store's root",
                expected="plain files and directories",
                remedy="replace the link; only the root itself may be one",
            )
        return path

    def _create(self, path: str, data: Buffer) -> bool:
        folder = os.path.dirname(path)
        if folder not in self._synced:
            durable.make_dirs(folder)
            # Whoever made these directories may not have synced them yet: do so once for each folder.
            at = folder
            while at != self._root:
                at = os.path.dirname(at)
                durable.fsync_dir(at)
            self._synced.add(folder)
        return durable.write_once(path, data)

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """Descriptor and length of a regular file; (-1, 0) where there is none."""
        fd = -1
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                # NONBLOCK: a fifo planted here must not hang us. NOFOLLOW: a link may have come since _path.
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            found = os.fstat(fd) if fd >= 0 else None
            yield (fd, found.st_size) if found and stat.S_ISREG(found.st_mode) else (-1, 0)
        finally:
            if fd >= 0:
                os.close(fd)

    def _holds(self, path: str, data: Buffer) -> bool:
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        with self._opened(path) as (fd, size):
            if fd < 0:
                raise UsageError(
                    f"store path {path}",
                    found="something that is no regular file",
                    expected="an object",
                    remedy="a key cannot be a folder of other keys: choose another key",
                )
            if size != len(view):
                return False
            return all(os.pread(fd, _COMPARE, at) == view[at : at + _COMPARE] for at in range(0, size, _COMPARE))

    @contextmanager
    def _translated(self, doing: str, key: str) -> Iterator[None]:
        """Operating-system errors, raw or from the durable door, in the words of the store's contract."""
        what = f"{doing} {self.url}/{key}"
        try:
            yield
        except OSError as error:
            raise _of_store(error, what) from error
        except DcrError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            raise _of_store(error.__cause__, what) from error


def _of_store(error: OSError, what: str) -> DcrError:
    detail = error.strerror or str(error)
    match error:
        case PermissionError():
            return StoreDenied(
                what, found=detail, remedy="give this user read and write access to the store's directory"
            )
        case NotADirectoryError():
            return UsageError(
                what,
                found="an object where the key needs a folder",
                remedy="a key cannot be a folder of other keys: choose another key",
            )
        case FileNotFoundError():
            return StoreUnavailable(
                what,
                found="a directory that keeps vanishing",
                remedy="stop what cleans the store's directory, then run again",
            )
    if error.errno in _PASSING:
        return StoreUnavailable(what, found=detail, remedy="run the same command again when the file system answers")
    return from_os_error(error, what)
