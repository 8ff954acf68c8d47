"""The same through a real S3 server: killed at each send to a socket, or the connection reset there.

An injected reset leaves the connection open, and urllib3 waits for the answer to what was never sent, as it does when
a firewall swallows packets: hence the short read time-out.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.s3server import BUCKET, S3Server
from tests.campaign.arena import Arena, Place, Scene
from tests.campaign.compare import contents
from tests.campaign.disturb import Bench
from tests.campaign.mixed import disturb
from tests.campaign.report import Report

_SENDS = ("sendto", "sendmsg")
_RESET = "ECONNRESET"


def run(bench: Bench, budget: int | None, report: Report) -> None:
    """A kill at up to ``budget`` sends (None: every one), and a reset at a third as many."""
    server = S3Server(bench.arena.root / "s3")
    kept = dict(os.environ)
    try:
        server.start()
        os.environ.update(server.env())
        there = Bench(S3Arena(bench.arena, server), bench.workers, bench.scenes)
        points = [p for name in there.scenes for p in there.points(name) if p.call in _SENDS]
        disturb(there, points, points, budget, _RESET, "sends", "through S3", report)
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(kept)


@dataclass(frozen=True)
class S3Place(Place):
    """A copy whose store is a prefix of the server's bucket."""

    client: Any = None
    prefix: str = ""

    def contents(self) -> dict[str, str]:
        """The store's objects are fetched first, so that they are compared as files of a directory are."""
        store = self.path / "store"
        for key, data in objects(self.client, self.prefix):
            path = store / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            return contents(self.path)
        finally:
            shutil.rmtree(store, ignore_errors=True)


class S3Arena(Arena):
    """Another arena's stages, each copy with its store on the server."""

    def __init__(self, inner: Arena, server: S3Server) -> None:
        self._inner, self._server, self._numbers = inner, server, itertools.count()
        self.root, self.model = inner.root, inner.model

    def stage(self, name: str) -> Place:
        return self._inner.stage(name)

    @contextmanager
    def copy(self, stage: str, label: str = "s3") -> Iterator[Place]:
        with self._inner.copy(stage, label) as place:
            client, prefix = self._server.client(), f"{os.getpid()}-{next(self._numbers)}"
            store = place.path / "store"
            for path in (p for p in store.rglob("*") if p.is_file()):
                client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(store)}", Body=path.read_bytes())
            shutil.rmtree(store, ignore_errors=True)
            self._configure(place.path / "dcr.yaml", prefix)
            yield S3Place(place.path, client, prefix)

    def _configure(self, path: Path, prefix: str) -> None:
        options = f"{{endpoint: '{self._server.endpoint}', backoff_s: 0.01, read_timeout_s: 2}}"
        there = f"store: {{url: '{self._server.url}/{prefix}', s3: {options}}}"
        path.write_text(path.read_text().replace("store: {url: store}", there))

    def scenes(self) -> list[Scene]:
        """Every act that talks to the store."""
        wanted = ("init", "create", "encode", "refit", "commit", "apply", "run")
        return [scene for scene in super().scenes() if scene.name in wanted]


def objects(client: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    """All objects below a prefix, by the rest of their keys."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        for found in page.get("Contents", []):
            body = client.get_object(Bucket=BUCKET, Key=found["Key"])["Body"].read()
            yield found["Key"].removeprefix(f"{prefix}/"), body
