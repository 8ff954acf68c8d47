"""The store, tried for real: a small object of our own is put, put again with other bytes, read and deleted."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...config import Config
from ...errors import CorruptInput, DcrError, StoreDenied, StoreUnavailable
from ...store import S3Options, Store, open_store
from .finding import Finding, fail, ok, warn

_SKEW_S, _SKEW_REFUSED_S = 5.0, 60.0  # a lease's heart is looked at for 60 s
_ATTEMPTS, _DEADLINE_S, _TIMEOUT_S = 2, 20.0, 10.0


class Probe:
    """A look at the store. All ranks look before any tidies up: a directory store clears empty folders away."""

    def __init__(self, config: Config) -> None:
        self._config = config
        host = re.sub("[^A-Za-z0-9-]", "-", socket.gethostname())[:64]
        self._key = f"{config.policy}/doctor/{host}-{os.getpid()}-{secrets.token_hex(8)}"
        self._put: Store | None = None

    def look(self) -> Iterator[Finding]:
        """Address, credentials, the promises of docs/store.md, and the clock. Raises what the store's calls raise."""
        url = self._config.store.url
        if "://" not in url or url.startswith("file:"):
            root = Path(unquote(urlsplit(url).path) if "://" in url else url)
            if not root.is_dir():
                yield warn("store", f"{root}, which is not there", "the directory that trainer and sites share",
                           "check store.url; at the trainer, dcr init makes it")  # fmt: skip
                return
        opened = open_store(url, quick(self._config.store.s3))
        begun = time.monotonic()
        try:
            created = opened.put_once(self._key, b"first")
        except StoreUnavailable as error:
            raise StoreUnavailable(error.what, found=error.found, expected="an answer",
                                   remedy="check store.url and store.s3.endpoint, and what lies between: firewalls, "
                                   "proxies (NO_PROXY)") from None  # fmt: skip
        if not created:
            raise CorruptInput(f"{self._key} in {opened.url}", found="other bytes under a new name",
                               expected="no object", remedy="look at who writes to the store")  # fmt: skip
        self._put = opened
        _refuses(opened, self._key)
        _read(opened, self._key)
        seconds, ahead = time.monotonic() - begun, opened.ahead_s(self._key)
        yield ok("store", f"{opened.url}: put-once, get, range and stat hold, {seconds:.2f} s for them all")
        yield from clock(ahead)

    def tidy(self) -> Iterator[Finding]:
        """Delete what was put. Only dcr gc needs to delete; where that is refused, the little object stays."""
        if self._put is not None:
            try:
                self._put.delete(self._key)
            except DcrError as error:
                told = f"an object that cannot be deleted, and stays: {self._key} ({error.found})"
                yield warn("store", told, "permission to delete, for dcr gc alone",
                           "grant it to the account that runs dcr gc")  # fmt: skip


def quick(options: S3Options) -> S3Options:
    """The same store with less patience: whoever asks what is wrong wants to be told."""
    return dataclasses.replace(
        options,
        attempts=min(options.attempts, _ATTEMPTS),
        deadline_s=min(options.deadline_s, _DEADLINE_S),
        connect_timeout_s=min(options.connect_timeout_s, _TIMEOUT_S),
        read_timeout_s=min(options.read_timeout_s, _TIMEOUT_S),
    )


def clock(ahead_s: float) -> Iterator[Finding]:
    """The store's clock against this machine's."""
    told = f"the store's is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) >= _SKEW_REFUSED_S:
        yield fail("clock", StoreDenied("this machine's clock", found=told, expected="the same time",
                                        remedy="synchronise it (NTP): S3 refuses requests that are 15 minutes off, and "
                                        "leases are judged by age"))  # fmt: skip
    elif abs(ahead_s) >= _SKEW_S:
        yield warn("clock", told, "the same time", "synchronise this machine's clock (NTP)")
    else:
        yield ok("clock", f"within {_SKEW_S:.0f} s of the store's")


def _refuses(opened: Store, key: str) -> None:
    if opened.put_once(key, b"other"):
        raise StoreDenied(
            f"put-once in {opened.url}",
            found="an object that was put over",
            expected="the second put to be refused (If-None-Match)",
            remedy="use a store that has conditional puts: without them two publishers break the joint commit",
        )


def _read(opened: Store, key: str) -> None:
    found, missing = opened.stat(key), opened.get(key + "-none")
    whole, part = opened.get(key), opened.get(key, 1, 3)
    if found is None or whole is None or part is None:
        raise StoreUnavailable(f"{key} in {opened.url}", found="no object, right after it was put",
                               expected="reads that see every finished put",
                               remedy="take the cache or replica out of the way, or another store")  # fmt: skip
    if (found.size, whole, part, missing) != (5, b"first", b"ir", None):
        told = f"{whole[:20]!r}, range {part[:20]!r}, {found.size} bytes"
        raise CorruptInput(f"{key} in {opened.url}", found=told, expected="b'first', b'ir', 5 bytes",
                           remedy="look at what is between here and the store")  # fmt: skip
