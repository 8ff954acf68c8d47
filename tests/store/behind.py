"""A world whose store is the real S3 server behind the fault proxy."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.cli.conftest import KIND, Quick
from tests.servers import S3Server
from tests.world import LAUNCHERS

from .faults import TIMEOUT_S
from .proxy import Proxy

ATTEMPTS = 4
OPTIONS = {
    "attempts": ATTEMPTS, "backoff_s": 0.01, "deadline_s": 10,
    "connect_timeout_s": TIMEOUT_S, "read_timeout_s": TIMEOUT_S,
}  # fmt: skip


class Behind(Quick):
    """``here`` runs a command in this process (with credentials in its environment), ``run`` in others."""

    def __init__(self, path: Path, server: S3Server, proxy: Proxy, sites: tuple[str, ...] = ("rollout",)) -> None:
        self.server, self.proxy, self.options = server, proxy, dict(OPTIONS)
        self.prefix = secrets.token_hex(6)
        where = f"{server.url}/{self.prefix}"
        super().__init__(path, LAUNCHERS[KIND], where, sites, server.env(), proxy.endpoint)

    def command(self, ranks: int, *arguments: str) -> list[str]:
        settings = [f"store.s3.{key}={value}" for key, value in self.options.items()]
        more = [] if arguments[0] == "synth" else [word for setting in settings for word in ("--set", setting)]
        return [*super().command(ranks, *arguments), *more]

    def must(self, *arguments: str) -> dict[str, object]:
        """A command in this process that must succeed; its JSON."""
        done = self.here(*arguments)
        assert done.code == 0, f"{arguments}: exit code {done.code}\n{done.error}"
        return done.json

    def start(self) -> None:
        """Version 0 and every site's replica of it, in this process."""
        self.must("init", "--checkpoint", str(self.synth(0)))
        for site in self.sites:
            self.must("init", "--site", site)
