"""How to talk to an S3 store: everything but credentials, which come from the standard AWS chain alone."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import UsageError
from .retry import RetryPolicy

MIB = 1 << 20
MAX_PARTS = 10_000


@dataclass(frozen=True)
class S3Options:
    """Settings of one S3 store; docs/store.md explains each.

    Parameters
    ----------
    endpoint : str, optional
        Base URL; None is the public service of the region.
    region : str, optional
        None takes it from the AWS chain, ``us-east-1`` in the last resort.
    path_style : bool, optional
        True: ``endpoint/bucket/key``. False: ``bucket.endpoint/key``. None: path style with an own endpoint.
    ca_bundle : str, optional
        PEM file of the authorities to trust instead of the system's.
    verify_tls : bool
        False accepts any certificate: for a laboratory only.
    plain_http : bool
        True allows an endpoint without TLS that is not this machine: for a laboratory only.
    checksums : str
        ``when_supported`` (CRC32 on every upload, checked on download) or ``when_required`` for older stores.
    part_mib, multipart_mib : int
        Smallest part of a multipart upload (at least 5), and the object size from which one is used, in MiB. The
        default keeps every JSON document (at most 256 MiB) in one PUT: what decides must not hang on a store's
        conditional completion of uploads, which is the weaker promise (docs/store.md, "Multipart").
    part_threads : int
        Parts of one object in flight at a time.
    connect_timeout_s, read_timeout_s : float
        Seconds for a connection (and of silence while a request is being sent), and of silence before and in an answer.
    attempts, backoff_s, deadline_s
        Tries of one request, first back-off, seconds for one operation: see :mod:`dcr_mpi.store.retry`.

    Raises
    ------
    UsageError
        A value out of its range.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    ca_bundle: str | None = None
    verify_tls: bool = True
    plain_http: bool = False
    checksums: str = "when_supported"
    part_mib: int = 16
    multipart_mib: int = 512
    part_threads: int = 2
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    attempts: int = 8
    backoff_s: float = 0.25
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        checks = (
            (
                "endpoint",
                self.endpoint is None or self.endpoint.startswith(("http://", "https://")),
                "an http(s):// URL",
            ),
            ("ca_bundle", self.ca_bundle is None or os.path.isfile(self.ca_bundle), "a readable PEM file"),
            ("checksums", self.checksums in ("when_supported", "when_required"), "when_supported or when_required"),
            ("part_mib", 5 <= self.part_mib <= 5120, "5 to 5120 (MiB, the limits of S3)"),
            ("multipart_mib", 1 <= self.multipart_mib <= 5120, "1 to 5120 (MiB; one PUT carries at most 5 GiB)"),
            ("part_threads", 1 <= self.part_threads <= 64, "1 to 64"),
            ("connect_timeout_s", self.connect_timeout_s > 0, "a positive number of seconds"),
            ("read_timeout_s", self.read_timeout_s > 0, "a positive number of seconds"),
            ("attempts", self.attempts >= 1, "at least 1"),
            ("backoff_s", self.backoff_s >= 0, "at least 0"),
            ("deadline_s", self.deadline_s > 0, "a positive number of seconds"),
        )
        for name, good, expected in checks:
            if not good:
                raise UsageError(f"store option {name}", found=repr(getattr(self, name)), expected=expected)

    def check_url(self, url: str) -> None:
        """Raise UsageError where requests to ``url`` would cross a network unencrypted without consent."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not self.plain_http and not _is_loopback(parts.hostname or ""):
            raise UsageError(
                "S3 endpoint",
                found=url,
                expected="https://",
                remedy="use the store's TLS endpoint (ca_bundle names an own authority); store.s3.plain_http: true "
                "sends everything in the clear, for a laboratory only",
            )

    @property
    def policy(self) -> RetryPolicy:
        """The bounds of one operation."""
        return RetryPolicy(self.attempts, self.backoff_s, self.deadline_s)

    def part_bytes(self, size: int) -> int:
        """Part size for an object of ``size`` bytes: whole MiB, never more than 10,000 parts."""
        return max(self.part_mib * MIB, -(-size // MAX_PARTS // MIB) * MIB)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
