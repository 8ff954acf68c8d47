"""A store behind the fault proxy on a fresh prefix of the real server, and a way behind its back."""

from __future__ import annotations

import dataclasses
import itertools
import random
import secrets
from typing import Any

from dcr_mpi.store import S3Options, Store, open_store
from tests.servers import BUCKET, S3Server

from .faults import TIMEOUT_S
from .proxy import Proxy

ATTEMPTS = 4
MIB = 1 << 20
DATA = random.Random(1).randbytes(3 * MIB)  # what lies under "k"


class Bench:
    """``store`` goes through ``proxy``, ``client`` does not."""

    def __init__(self, server: S3Server, proxy: Proxy) -> None:
        self.client, self.proxy, self.prefix = server.client(), proxy, secrets.token_hex(6)
        self.store = self.open()
        self._numbers = itertools.count()

    def open(self, **changes: Any) -> Store:
        """A store object of its own: small multiparts, short waits."""
        options = S3Options(
            endpoint=self.proxy.endpoint, connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S, attempts=ATTEMPTS,
            backoff_s=0.01, deadline_s=10, multipart_mib=5, part_mib=5, part_threads=1,
        )  # fmt: skip
        return open_store(f"s3://{BUCKET}/{self.prefix}", dataclasses.replace(options, **changes))

    def fresh(self) -> str:
        """A key that nobody used."""
        return f"fresh-{next(self._numbers):05d}"

    def some(self, size: int) -> bytes:
        """The same random bytes for the same size."""
        return random.Random(size).randbytes(size)

    def ensure(self, key: str, size: int) -> bytes:
        """Put :meth:`some` under a key, unless they are there."""
        if self.holds(key) is None:
            self.replace(key, self.some(size))
        return self.some(size)

    def holds(self, key: str) -> bytes | None:
        """What the server has under a key, past proxy and store."""
        try:
            return self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None

    def replace(self, key: str, data: bytes) -> None:
        """What nobody should do: other bytes under a key."""
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}", Body=data)

    def uploads(self) -> list[dict[str, str]]:
        """Unfinished uploads of this bench."""
        page = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=self.prefix)
        return [{"Key": u["Key"], "UploadId": u["UploadId"]} for u in page.get("Uploads", ())]
