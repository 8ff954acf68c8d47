"""Opening a shard only when it is whole: the superblock says where the file should end and whether a writer closed it.

A shard that a writer left behind is never repaired. Three signs give it away: it does not end where its superblock
says, its consistency flag is still set, or somebody holds the lock that HDF5 takes to write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h5py
from h5py import h5f, h5p

from ..errors import CorruptInput, DcrError, from_os_error

_plugins = "no hdf5plugin"
with suppress(ImportError):  # registers more compression filters; without it such shards are refused by name
    import hdf5plugin

    _plugins = f"hdf5plugin {hdf5plugin.version}"

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_WRITE_AGAIN = "let the trainer write it again: to a temporary name, closed, synced, then renamed"


def library() -> str:
    """The library's version and where its filters come from, for people."""
    found = os.environ.get("HDF5_PLUGIN_PATH")
    return f"HDF5 {h5py.version.hdf5_version}, {_plugins}" + (f", HDF5_PLUGIN_PATH={found}" if found else "")


def h5_error(error: Exception, what: str) -> DcrError:
    """Translate what h5py raised while reading ``what``: an operating-system error, else damage inside the file."""
    if system := system_error(error):
        return from_os_error(system, f"reading {what}")
    return CorruptInput(f"shard incomplete or damaged: {what}", found=str(error)[:300], remedy=_WRITE_AGAIN)


def system_error(error: Exception) -> OSError | None:
    """The operating system's error behind one of the library, which may only quote it ("errno = 27")."""
    if isinstance(error, OSError) and error.errno:
        return error
    quoted = re.search(r"errno = (\d+)", str(error))
    return (
        OSError(int(quoted[1]), os.strerror(int(quoted[1])))
        if quoted and isinstance(error, (OSError, RuntimeError))
        else None
    )


@contextmanager
def open_shard(path: str) -> Iterator[tuple[h5f.FileID, os.stat_result]]:
    """A whole shard, open for reading, and its stat; closed at the end.

    Raises
    ------
    CorruptInput
        Truncated, not closed by its writer, still open for writing, or not HDF5.
    NotReady, UsageError, ResourceError
        Missing, not permitted, unreadable.
    """
    with _held(path) as found:
        file = open_library(path)
        try:
            yield file, found
        finally:
            close_library(file)


def look(path: str) -> os.stat_result:
    """The stat of a whole shard, which is not listed. Raises what :func:`open_shard` raises."""
    with _held(path) as found:
        return found


@contextmanager
def _held(path: str) -> Iterator[os.stat_result]:
    """A whole shard, which nobody may open for writing while the block lasts."""
    fd = open_regular(path)
    try:
        found = os.fstat(fd)
        _refuse_writer(fd, path)
        _refuse_incomplete(fd, found.st_size, path)
        yield found
    finally:
        os.close(fd)  # and with it the shared lock


def open_regular(path: str) -> int:
    """A descriptor of a regular file for reading; a directory or a pipe is CorruptInput, never a hang."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, f"opening shard {path}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptInput(f"shard {path}", found="no regular file", expected="an HDF5 file")
    return fd


def open_library(path: str) -> h5f.FileID:
    """Open through the library, without its lock where the file system has none: ours was asked already.

    With the library's default settings first: a file that this process has open elsewhere opens with no others.
    Close it by :func:`close_library`.
    """
    access = h5p.create(h5p.FILE_ACCESS)
    try:
        return h5f.open(os.fsencode(path), h5f.ACC_RDONLY, fapl=access)
    except (OSError, RuntimeError, KeyError):
        access.set_file_locking(False, True)
    try:
        return h5f.open(os.fsencode(path), h5f.ACC_RDONLY, fapl=access)
    except (OSError, RuntimeError, KeyError) as error:
        raise h5_error(error, path) from error


def close_library(file: h5f.FileID) -> None:
    """Close a file with all that is open in it, also what a traceback still holds."""
    h5py.File(file).close()


def _refuse_writer(fd: int, path: str) -> None:
    """HDF5 holds an exclusive flock while a file is open for writing. File systems without locks say nothing."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise CorruptInput(
                f"shard incomplete: {path}",
                found="open for writing by another process",
                expected="a closed file",
                remedy="run again when its writer has closed it",
            ) from None


def _refuse_incomplete(fd: int, size: int, path: str) -> None:
    at = 0
    while (head := os.pread(fd, 64, at))[:8] != _SIGNATURE:
        at = max(512, at * 2)  # behind a user block of 512 * 2^n bytes
        if at >= size:
            empty = (
                f"shard incomplete: {path}"
                if size == 0
                else f"not an HDF5 file, or one whose writer was cut short: {path}"
            )
            raise CorruptInput(empty, found=f"{size} bytes without an HDF5 signature", expected="a closed HDF5 file",
                               remedy=_WRITE_AGAIN)  # fmt: skip
    end, flags = _superblock(head)
    if end is None or size < end:
        expected = f"{end} bytes" if end else "a whole superblock"
        raise CorruptInput(f"shard incomplete: {path}", found=f"{size} bytes", expected=expected, remedy=_WRITE_AGAIN)
    if flags & 0b101:  # opened to write, or to write while others read (SWMR); the library clears both when it closes
        raise CorruptInput(
            f"shard incomplete: {path}",
            found="the consistency flag of a writer that has not closed it",
            expected=f"a closed file (it has {size} bytes, its superblock knows of {end})",
            remedy=_WRITE_AGAIN,
        )
    if size != end:
        raise CorruptInput(
            f"shard incomplete: {path}",
            found=f"{size} bytes",
            expected=f"{end}: its writer did not flush, or something was appended",
            remedy=f"{_WRITE_AGAIN}; if it is whole but for a tail, h5repack makes a clean copy",
        )


def _superblock(head: bytes) -> tuple[int | None, int]:
    """End of file and consistency flags of a superblock (HDF5 file format, II.A); end None where it is cut short."""
    if len(head) < 16:
        return None, 0
    version = head[8]
    if version > 3:
        raise CorruptInput(
            "HDF5 superblock",
            found=f"version {version}",
            expected="0 to 3",
            remedy="write it with libver v114 or older",
        )
    old = version < 2
    width = head[13] if old else head[9]
    at = (24, 28, 12, 12)[version] + 2 * width  # base address, then one more, then the end of file
    if len(head) < at + width:
        return None, 0
    return int.from_bytes(head[at : at + width], "little"), int.from_bytes(head[20:24], "little") if old else head[11]


def attribute(parent: h5py.h5g.GroupID | h5py.h5d.DatasetID, name: str) -> object:
    """An attribute's value as h5py gives it, or None where there is none."""
    if not h5py.h5a.exists(parent, name.encode()):
        return None
    holder = h5py.Dataset(parent) if isinstance(parent, h5py.h5d.DatasetID) else h5py.Group(parent)
    value: object = holder.attrs[name]
    return value
