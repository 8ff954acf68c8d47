"""Signing what this side writes, and refusing what nobody entitled has signed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..digest import sha256
from ..errors import CorruptInput, NotAuthentic, UsageError
from ..jsonable import dumps, loads
from .api import Place, Signer, Verifier

MAX_LINE = 256  # bytes of the line with the signature
_HEX = re.compile(r"(?:[0-9a-f]{2}){32,64}")


@dataclass(frozen=True)
class Trust:
    """A key that is accepted: for ``role`` (None: for all of them), and up to version ``until`` (None: for ever)."""

    key: Verifier
    role: str | None = None
    until: int | None = None


@dataclass(frozen=True)
class _Line:
    key: str
    signature: str


class Keyring:
    """This side's own key, if it has one, and whom it trusts.

    Parameters
    ----------
    own : Signer, optional
        Signs what this side puts.
    trusted : sequence of Trust
        Whose signatures are accepted.
    required : bool
        False: nothing is signed or verified; signatures that are there are passed over.
    """

    def __init__(self, own: Signer | None, trusted: Sequence[Trust], required: bool = True) -> None:
        self._own, self._trusted, self.required = own, tuple(trusted), required

    def seal(self, place: Place, content: bytes) -> bytes:
        """What to put under a key: the content, and a line with its signature where keys are configured.

        Raises
        ------
        UsageError
            No key to sign with, or one whose signature this side itself would refuse.
        """
        if not self.required:
            return content
        if self._own is None:
            raise UsageError(
                f"signing {place.key}",
                found="no key to sign with",
                expected=f"a key of the {place.role}",
                remedy="name the key file with keys.file, or give the key in DCR_KEY (dcr keygen makes one)",
            )
        if not any(t.key.id == self._own.id for t in self._trusted if _accepts(t, place)):
            raise UsageError(
                f"signing {place.key}",
                found=f"key {self._own.id}",
                expected=f"one that the trust file accepts for the {place.role}",
                remedy="add its public key there, at all sides, or use the right key",
            )
        line = _Line(self._own.id, self._own.sign(_message(place, content)).hex())
        return content + b"\n" + dumps(line)

    def open(self, place: Place, raw: bytes) -> bytes:
        """The content of an object from the store.

        Raises
        ------
        NotAuthentic
            Keys are configured, and it is unsigned, or signed by a key that is not trusted for this object, or
            changed, or it was signed for another key of the store.
        CorruptInput
            What follows the content is no signature.
        """
        content, newline, rest = raw.partition(b"\n")
        line = _parse(rest, place.key) if newline else None
        if not self.required:
            return content
        if line is None:
            raise NotAuthentic(
                place.key,
                found="no signature",
                expected=f"one of the {place.role}",
                remedy="it was put without a key, or by somebody else: see docs/security.md, 'When one is refused'",
            )
        known = [t for t in self._trusted if t.key.id == line.key]
        entitled = [t for t in known if _accepts(t, place)]
        if not entitled:
            whose = sorted({_words(t) for t in known})
            raise NotAuthentic(
                place.key,
                found=f"a signature by key {line.key}, " + (f"of {', '.join(whose)}" if whose else "which is unknown"),
                expected=f"one by a key that is trusted for the {place.role}",
                remedy="if that key is new, add it to the trust file; else look at who may write to the store",
            )
        if not entitled[0].key.verify(_message(place, content), bytes.fromhex(line.signature)):
            raise NotAuthentic(
                place.key,
                found="a signature of other content, or for another place",
                expected="this content, signed for this key of the store",
                remedy="it was changed or copied there after it was signed: look at who may write to the store",
            )
        return content


NO_KEYS = Keyring(None, (), required=False)
NOBODY = Keyring(None, ())  # for ranks that read no document: if one ever did, it would be refused


def _message(place: Place, content: bytes) -> bytes:
    """What is signed. No key of the store holds a line feed, so no two places and contents have one message."""
    return b"dcr-mpi signature 1\n" + place.key.encode() + b"\n" + sha256(content).encode()


def _accepts(trust: Trust, place: Place) -> bool:
    in_time = trust.until is None or place.version is None or place.version <= trust.until
    return trust.role in (None, place.role) and in_time


def _words(trust: Trust) -> str:
    return f"the {trust.role or 'policy'}" + (f" until version {trust.until}" if trust.until is not None else "")


def _parse(raw: bytes, what: str) -> _Line:
    if len(raw) > MAX_LINE:
        raise CorruptInput(f"signature of {what}", found=f"{len(raw)} bytes", expected=f"at most {MAX_LINE}")
    line = loads(_Line, raw, f"signature of {what}")
    if not re.fullmatch("[0-9a-f]{16}", line.key) or not _HEX.fullmatch(line.signature):
        raise CorruptInput(f"signature of {what}", found=json.dumps(line.signature[:40]), expected="hex digits")
    return line
