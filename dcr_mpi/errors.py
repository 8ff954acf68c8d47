"""Error classes. Each class is one exit code; each message says what was found, what was expected, what to do.

The codes are part of the command line's contract (README, "Exit codes"); a caller treats any other non-zero
code as a failure it does not know.
"""

from __future__ import annotations

import errno

_LONGEST = 2000  # characters of one part of a message


class DcrError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    what : str
        The thing that is wrong, by name (file, tensor, key, rank).
    found, expected, remedy : str, optional
        What was there, what should have been there, and the next step for the user.
    """

    code = 1
    retryable = False

    def __init__(self, what: str, *, found: object = None, expected: object = None, remedy: str = "") -> None:
        self.what, self.found, self.expected, self.remedy = what, found, expected, remedy
        text = _cut(what)
        if found is not None:
            text += f": found {_cut(found)}"
        if expected is not None:
            text += f"{', ' if found is not None else ': '}expected {_cut(expected)}"
        if remedy:
            text += f". Next: {remedy}"
        super().__init__(text)


def printable(text: str) -> str:
    """A text fit for a terminal: what would move its cursor, or is no character at all, is shown escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _cut(value: object) -> str:
    """A message must not grow with what somebody put into a name, nor do anything to a terminal."""
    text = str(value)
    return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)")


class UsageError(DcrError):
    """Command line or configuration is wrong."""

    code = 2


class NotReady(DcrError):
    """Something that should appear is not there yet (a version, a manifest, a receipt)."""

    code = 10


class CorruptInput(DcrError):
    """Bytes that were read are not what they claim to be: incomplete shard, bad digest, malformed part."""

    code = 11


class BaseMismatch(DcrError):
    """A delta was made from another baseline than the one it met."""

    code = 12


class Conflict(DcrError):
    """Another actor won: a put-once object holds other content, a lease is held."""

    code = 13


class Overtaken(Conflict):
    """What a job was taking is not what stands any more. All its ranks raise it, in step, and may go on together."""


class VerifyFailed(DcrError):
    """The state digest after the act is not the one that the manifest promises."""

    code = 14


class GeometryError(DcrError):
    """Names, shapes, dtypes, storage or layouts do not fit each other."""

    code = 15


class NotAuthentic(DcrError):
    """An object of the store is unsigned, or signed by no key that is trusted for it."""

    code = 16


class StoreUnavailable(DcrError):
    """The store kept failing in a way that usually passes; the bounded retries are used up."""

    code = 20
    retryable = True


class StoreDenied(DcrError):
    """The store refuses these credentials or this action."""

    code = 21


class ResourceError(DcrError):
    """Out of disk, memory or file handles, or the medium failed or is read-only."""

    code = 30


class PeerFailed(DcrError):
    """Another rank of this job failed or fell silent."""

    code = 40


class LaunchError(DcrError):
    """The launcher and the MPI library disagree about the size of the job."""

    code = 41


class Preempted(DcrError):
    """A signal asked this job to stop; what is done is durable and a re-run goes on from there."""

    code = 75
    retryable = True


ALL = (
    UsageError, NotReady, CorruptInput, BaseMismatch, Conflict, VerifyFailed, GeometryError,
    NotAuthentic, StoreUnavailable, StoreDenied, ResourceError, PeerFailed, LaunchError, Preempted,
)  # fmt: skip


def by_code(code: int) -> type[DcrError]:
    """The class of an exit code; :class:`DcrError` for a code that is not in the table."""
    return next((cls for cls in ALL if cls.code == code), DcrError)


_RESOURCE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG}


def from_os_error(error: OSError, doing: str) -> DcrError:
    """Translate an operating-system error met while ``doing`` something into the class that a user can act on."""
    name = errno.errorcode.get(error.errno or 0, "error")
    detail = f"{name} ({error.strerror or error})"
    if error.errno in _RESOURCE:
        remedy = "free or repair the medium, then run the same command again: nothing is lost"
        return ResourceError(doing, found=detail, remedy=remedy)
    if error.errno == errno.ENOENT:
        return NotReady(doing, found=detail, remedy="check the path, or wait until the file is written")
    if error.errno in (errno.EACCES, errno.EPERM):
        return UsageError(doing, found=detail, remedy="give this user access to the path")
    return ResourceError(doing, found=detail, remedy="run the same command again: nothing is lost")
