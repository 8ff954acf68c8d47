"""Fixtures: a real S3 server per test session (and xdist worker), and a fresh place to store things per test."""

from __future__ import annotations

import dataclasses
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.store import S3Options, Store, open_store
from tests.servers import S3Server
from tests.store.bench import DATA, Bench
from tests.store.proxy import Proxy

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Place:
    """Where a test stores things; other processes can be sent there too."""

    url: str
    options: S3Options | None

    def open(self) -> Store:
        """A store object of its own."""
        return open_store(self.url, self.options)

    def child(self, mode: str, **arguments: Any) -> subprocess.Popen[str]:
        """Start ``child.py`` on this place; it prints one JSON value."""
        options = dataclasses.asdict(self.options) if self.options else None
        text = json.dumps({"url": self.url, "options": options, **arguments})
        return subprocess.Popen(
            [sys.executable, str(CHILD), mode, text],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server, shared by the tests of this process."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield server.start()
    finally:
        server.kill()  # an orderly end would wait for idle connections, for data that nobody needs


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix in the server's bucket; the environment holds the right credentials during the test."""
    use_credentials(monkeypatch, s3_server.env())
    return f"{s3_server.url}/{secrets.token_hex(6)}"


@pytest.fixture
def s3_options(s3_server: S3Server) -> S3Options:
    """Options for the server, with the smallest multipart sizes that S3 allows and short waits."""
    return S3Options(
        endpoint=s3_server.endpoint, multipart_mib=5, part_mib=5, backoff_s=0.05, read_timeout_s=20, deadline_s=60
    )


@pytest.fixture
def s3_place(s3_url: str, s3_options: S3Options) -> Place:
    """A fresh place on the real S3 server."""
    return Place(s3_url, s3_options)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy of the test's own in front of the real server; whatever was scripted, it ends within seconds."""
    between = Proxy(s3_server.endpoint)
    try:
        yield between
    finally:
        between.close()


@pytest.fixture
def bench(s3_server: S3Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    use_credentials(monkeypatch, s3_server.env())
    """A store behind the proxy, with ``DATA`` under "k"."""
    made = Bench(s3_server, proxy)
    made.replace("k", DATA)
    yield made
    made.client.close()


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A fresh place, once in a directory and once on the real S3 server."""
    if request.param == "directory":
        return Place(f"file://{tmp_path}/store", None)
    return request.getfixturevalue("s3_place")


@pytest.fixture
def store(place: Place) -> Store:
    """A store object on the fresh place."""
    return place.open()


def use_credentials(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Only ``variables``: nothing of the machine's own AWS profile, token or CA leaks into a test."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
