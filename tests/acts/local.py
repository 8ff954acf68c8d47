"""Acts called in this process: one rank, a directory store, real files; for tests that need many cycles."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from dcr_mpi.acts.apply import ApplyJob, apply
from dcr_mpi.acts.commit import decide
from dcr_mpi.acts.create import CreateJob, create_replica
from dcr_mpi.acts.encode import encode
from dcr_mpi.acts.init import InitJob, init_policy, register_site
from dcr_mpi.acts.next_version import EncodeJob
from dcr_mpi.acts.ports import Ports
from dcr_mpi.acts.prepare import prepare
from dcr_mpi.acts.prepare_plan import PrepareJob
from dcr_mpi.acts.publish import CodecSettings
from dcr_mpi.acts.replica import Replica
from dcr_mpi.catalog import Catalog
from dcr_mpi.comm import Solo
from dcr_mpi.events import Events
from dcr_mpi.kernels import get_kernels
from dcr_mpi.lease import Lease
from dcr_mpi.model import Layout, Receipt, ReplicaRecord
from dcr_mpi.signing import NO_KEYS, Keyring
from dcr_mpi.store import open_store
from tests.world import read_all

SMALL = CodecSettings(block=64, bucket_bytes=1 << 10, part_bytes=1 << 11)


class Local:
    """One policy with one site ("s") under ``path``; checkpoints are the caller's directories.

    ``keys`` are the trainer's and, where the site has no ``site_keys`` of its own, the site's.
    """

    def __init__(
        self,
        path: Path,
        trainer: Layout | None,
        site: Layout | None,
        codec: CodecSettings = SMALL,
        kernels: str = "numba",
        dtypes: Mapping[str, str] = {},
        keys: Keyring = NO_KEYS,
        site_keys: Keyring | None = None,
        policy: str = "p",
    ) -> None:
        self.path, self.trainer, self.site, self.codec, self.dtypes = path, trainer, site, codec, dtypes
        events = Events(None, "test", "s", 0, 1, 0)
        store = open_store(str(path / "store"))
        self.ports = Ports(Catalog(store, policy, keys), Solo(), get_kernels(kernels), events)
        self.site_ports = dataclasses.replace(self.ports, catalog=Catalog(store, policy, site_keys or keys))

    @property
    def replica(self) -> Replica:
        return Replica(self.path / "replica", "s")

    def begin(self, checkpoint: Path, source: Path | None = None) -> None:
        init_policy(self.ports, InitJob(checkpoint, self.path / "state", self.trainer, self.codec, dtypes=self.dtypes))
        register_site(self.site_ports, "s", self.site)
        create_replica(self.site_ports, CreateJob("s", self.replica.directory, source))

    def encode(self, new: Path, base: Path | None = None, sites: tuple[str, ...] = ("s",)) -> Receipt:
        return encode(self.ports, EncodeJob(new, base, self.path / "state", sites, self.codec, dtypes=self.dtypes))

    def prepare(self, version: int | None = None) -> Receipt | None:
        return prepare(self.site_ports, PrepareJob("s", self.replica.directory, version))

    def drop_journals(self, version: int) -> None:
        with Lease(self.replica.work) as lease:
            self.replica.drop_journals(version, lease)

    def save(self, record: ReplicaRecord) -> None:
        """Give the replica another record."""
        with Lease(self.replica.work) as lease:
            self.replica.save(record, lease)

    def commit(self) -> None:
        assert decide(self.ports.catalog, wait_s=1).commit

    def apply(self, version: int | None = None) -> Receipt:
        return apply(self.site_ports, ApplyJob("s", self.replica.directory, version, full=True))

    def cycle(self, new: Path) -> Receipt:
        sealed = self.encode(new)
        prepared = self.prepare()
        assert prepared is not None
        assert prepared.state == sealed.state
        self.commit()
        assert self.apply().state == sealed.state
        return sealed

    def words(self) -> dict[tuple[int, str], bytes]:
        return read_all(self.replica.directory, self.ports.catalog.layout("s").layout)
