"""Keys from files and the environment, never from the configuration itself; and making new ones.

A key file has a line per key, ``ed25519-secret HEX`` or ``hmac-sha256 HEX``; a trust file says who may sign what,
``publisher ed25519 HEX [until VERSION]`` or ``site NAME ed25519 HEX [until VERSION]``. ``#`` begins a comment.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UsageError, from_os_error
from .api import Signer
from .ed25519 import PublicKey, SecretKey
from .keyring import NO_KEYS, Keyring, Trust
from .shared import MIN_BYTES, SharedKey

ENVIRONMENT = "DCR_KEY"
_MAX_FILE = 1 << 20
_SECRET, _SHARED, _PUBLIC = "ed25519-secret", "hmac-sha256", "ed25519"
_TRUST = re.compile(
    rf"(publisher|site [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}) {_PUBLIC} ([0-9a-f]{{64}})(?: until ([0-9]{{1,15}}))?"
)


def load_keyring(file: Path | None, trust: Path | None, environment: Mapping[str, str] = os.environ) -> Keyring:
    """The keyring of this side; :data:`NO_KEYS` where nothing is configured.

    Raises
    ------
    UsageError
        A file that is missing, malformed, or open to others; a key given twice; a trust file beside a shared key, or
        none beside an Ed25519 key. No message has anything of a key in it.
    """
    text = environment.get(ENVIRONMENT)
    if file is not None and text is not None:
        raise UsageError(
            "key to sign with", found=f"keys.file and {ENVIRONMENT}", expected="one of them", remedy="leave one out"
        )
    if text is not None:
        own = list(_signers(text, ENVIRONMENT))
    elif file is not None:
        own = list(_signers(_read(file, "key file", 0o077, "chmod 600"), f"key file {file}"))
    else:
        own = []
    shared = [key for key in own if isinstance(key, SharedKey)]
    if shared:
        if len(shared) != len(own) or trust is not None:
            raise UsageError(
                "keys",
                found="a shared key (hmac-sha256) beside Ed25519 keys",
                expected="one or the other",
                remedy="with a shared key leave keys.trust out; with Ed25519 use dcr keygen without --shared",
            )
        return Keyring(own[0], [Trust(key) for key in shared])
    if trust is None:
        if not own:
            return NO_KEYS
        raise UsageError(
            "keys.trust",
            found="nothing, beside an Ed25519 key",
            expected="the file that says whose signatures are accepted",
            remedy="docs/security.md shows one",
        )
    if len(own) > 1:
        raise UsageError(
            "keys.file", found=f"{len(own)} Ed25519 keys", expected="one", remedy="one signs: drop the rest"
        )
    text = _read(trust, "trust file", 0o022, "chmod go-w")
    return Keyring(own[0] if own else None, list(_trusts(text, f"trust file {trust}")))


def generate(file: Path, shared: bool) -> str:
    """Make a key and write it to a new file that only its owner can read; its public line, "" for a shared key.

    Raises
    ------
    UsageError
        The file exists: keys are never written over.
    """
    secret = secrets.token_bytes(MIN_BYTES)
    public = "" if shared else f"{_PUBLIC} {SecretKey(secret).raw.hex()}"
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as out:
            out.write(f"{_SHARED if shared else _SECRET} {secret.hex()}\n")
    except FileExistsError:
        raise UsageError(
            f"key file {file}", found="a file", expected="none: keys are never written over", remedy="name another"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"key file {file}") from error
    return public


def _read(path: Path, what: str, forbidden: int, remedy: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            mode = os.fstat(fd).st_mode & 0o777
            raw = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(
            f"{what} {path}",
            found=error.strerror,
            expected="a readable file",
            remedy="correct keys: in the configuration",
        ) from None
    if mode & forbidden:
        raise UsageError(
            f"{what} {path}",
            found=f"mode {mode:03o}, open to others",
            expected=f"mode {mode & ~forbidden:03o}",
            remedy=f"{remedy} {path}; if others may have used it, make a new key",
        )
    try:
        if len(raw) > _MAX_FILE:
            raise ValueError
        return raw.decode("ascii")
    except ValueError:  # nothing of the bytes is shown: they may be a key
        raise UsageError(f"{what} {path}", found="no short ASCII text", expected="lines as dcr keygen makes") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if words := " ".join(line.partition("#")[0].split()):
            yield number, words


def _signers(text: str, what: str) -> Iterator[Signer]:
    none = True
    for number, line in _lines(text):
        kind, _, digits = line.partition(" ")
        if re.fullmatch(r"(?:[0-9a-f]{2})+", digits) and kind in (_SECRET, _SHARED):
            secret = bytes.fromhex(digits)
            if kind == _SHARED and MIN_BYTES <= len(secret) <= 1024:
                yield SharedKey(secret)
                none = False
                continue
            if kind == _SECRET and len(secret) == 32:
                yield SecretKey(secret)
                none = False
                continue
        raise _malformed(what, number, f"'{_SECRET}' and 64 hex digits, or '{_SHARED}' and 64 or more")
    if none:
        raise _malformed(what, 1, "a key")


def _trusts(text: str, what: str) -> Iterator[Trust]:
    for number, line in _lines(text):
        match = _TRUST.fullmatch(line)
        if match is None:
            raise _malformed(
                what, number, "'publisher ed25519 HEX' or 'site NAME ed25519 HEX', perhaps 'until VERSION'"
            )
        role, digits, until = match.groups()
        yield Trust(PublicKey(bytes.fromhex(digits)), role, None if until is None else int(until))


def _malformed(what: str, line: int, expected: str) -> UsageError:
    return UsageError(f"{what}, line {line}", found="something else", expected=expected, remedy="dcr keygen makes keys")
