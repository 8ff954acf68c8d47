"""A world whose parts go straight from the trainer to the site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from dcr_mpi.acts.offering import Served, serve
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.direct import Inlet, Outlet, Reach, Serving
from dcr_mpi.model import Receipt
from dcr_mpi.signing import NO_KEYS, Keyring
from tests.acts.local import Local
from tests.acts.tiny import SITE, TRAINER

POLL = (0.002, 0.02)


class Direct(Local):
    """``store``: when the trainer copies parts to the store."""

    def __init__(
        self, path: Path, store: str = "after", keys: Keyring = NO_KEYS, site_keys: Keyring | None = None
    ) -> None:
        super().__init__(path, TRAINER, SITE, keys=keys, site_keys=site_keys)
        self.publisher_starts(store)
        self.site_ports = dataclasses.replace(self.site_ports, inlet=Inlet(Reach(2, 5, 1, 20)))

    @property
    def outlet(self) -> Outlet:
        assert self.ports.outlet is not None
        return self.ports.outlet

    @property
    def inlet(self) -> Inlet:
        assert self.site_ports.inlet is not None
        return self.site_ports.inlet

    def publisher_starts(self, store: str | None) -> None:
        """Another process: nobody serves what the one before did. None: it goes by the store alone."""
        if self.ports.outlet is not None:
            self.outlet.close()
        outlet = None if store is None else Outlet(Serving("127.0.0.1", store=store, spool=self.path))
        self.ports = dataclasses.replace(self.ports, outlet=outlet)

    def follow(self, wait_s: float = 60.0) -> Receipt | None:
        job = PrepareJob("s", self.replica.directory, wait_s=wait_s, poll_s=POLL, window=2)
        return prepare(self.site_ports, job)

    def serve(self, version: int, wait_s: float = 0.0) -> Served | None:
        return serve(self.ports, version, ("s",), wait_s, POLL)

    def parts(self, version: int) -> list[Path]:
        """What is in the store of a version's parts."""
        return sorted((self.path / f"store/p/versions/{version:06d}").glob("parts/*"))

    def close(self) -> None:
        self.publisher_starts(None)
        self.inlet.close()
