"""Worlds at each stage of a version's life, made once per process; a test that changes one gets a copy of its own."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers import S3Server
from tests.world import LAUNCHERS, Done, World

KIND = sorted(LAUNCHERS)[0]


class Quick(World):
    """A world whose commands run in this process where that makes no difference."""

    def copy(self, path: Path) -> Quick:
        """The same world under ``path``, which must not exist yet."""
        shutil.copytree(self.path, path)
        return Quick(path, self.launcher, sites=self.sites)

    def inside(self) -> Setup:
        """The same world with all commands in this process."""
        return Setup(self.path, self.launcher, sites=self.sites)


class Setup(Quick):
    """A world whose commands all run in this process."""

    def run(self, ranks: int, *arguments: str, before: tuple[str, ...] = ()) -> Done:
        assert ranks == 1 and not before
        return self.here(*arguments)


STEPS: dict[str, Callable[[World], object]] = {
    "begun": lambda world: world.begin(),
    "sealed": lambda world: world.encode(1),
    "prepared": lambda world: [world.dcr(1, "refit", "--site", site) for site in world.sites],
    "committed": lambda world: world.dcr(1, "commit"),
    "applied": lambda world: [world.dcr(1, "apply", "--site", site) for site in world.sites],
}


@dataclass
class Stages:
    """``stages["sealed"]`` is to be looked at only; ``stages.copy("sealed", path)`` is the caller's."""

    root: Path
    sites: tuple[str, ...]
    made: dict[str, Quick] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Quick:
        before: Quick | None = None
        for stage, step in STEPS.items():
            if stage not in self.made:
                path = self.root / stage
                if before is None:
                    path.mkdir(parents=True)
                else:
                    before.copy(path)
                step(Setup(path, LAUNCHERS[KIND], sites=self.sites))
                self.made[stage] = Quick(path, LAUNCHERS[KIND], sites=self.sites)
            before = self.made[stage]
            if stage == name:
                return before
        raise KeyError(name)

    def copy(self, name: str, path: Path) -> Quick:
        """A world at this stage under ``path``, which must not exist yet."""
        return self[name].copy(path)


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """One site."""
    return Stages(tmp_path_factory.mktemp("stages"), ("rollout",))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """Two sites."""
    return Stages(tmp_path_factory.mktemp("pairs"), ("east", "west"))


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def s3_world(s3_server: S3Server, tmp_path: Path) -> World:
    """A world whose store is a fresh prefix on the S3 server."""
    return Quick(
        tmp_path,
        LAUNCHERS[KIND],
        store=f"{s3_server.url}/{secrets.token_hex(6)}",
        endpoint=s3_server.endpoint,
        env=s3_server.env(),
    )
