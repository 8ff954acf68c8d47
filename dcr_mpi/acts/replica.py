"""A site's replica on disk: its shards, its record, and the working directory ``.dcr`` beside them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from stat import S_ISREG

from .. import durable
from ..checkpoint import Checkpoint, geometry_sha256
from ..digest import sha256
from ..errors import BaseMismatch, CorruptInput, GeometryError, NotReady, from_os_error
from ..hdf5 import Inventory
from ..journal import Binding
from ..jsonable import dumps, loads
from ..lease import Lease
from ..model import Layout, ReplicaRecord

RESTORE = "Restore it: remove the directory, then dcr init --site SITE and dcr refit --site SITE --catch-up"


class Replica:
    """Paths and record of one replica. Shards lie in ``directory``; nothing else in it is ever touched."""

    def __init__(self, directory: Path, site: str) -> None:
        self.directory, self.site = Path(directory), site
        self.work = self.directory / ".dcr"

    def record(self) -> ReplicaRecord | None:
        """The record, or None where there is no replica yet."""
        path = self.work / "replica.json"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os_error(error, f"reading {path}") from error
        return loads(ReplicaRecord, raw, str(path))

    def need(self) -> ReplicaRecord:
        record = self.record()
        if record is None:
            raise NotReady(
                f"replica {self.directory}",
                found="no record of it",
                expected="a replica of a committed version",
                remedy=f"create it: dcr init --site {self.site}",
            )
        if record.site != self.site:
            raise BaseMismatch(
                f"replica {self.directory}",
                found=f"the replica of site {record.site!r}",
                expected=repr(self.site),
                remedy="one directory per site: check the configuration",
            )
        return record

    def save(self, record: ReplicaRecord) -> None:
        durable.make_dirs(str(self.work))
        durable.replace(str(self.work / "replica.json"), dumps(record))

    def creating(self) -> str:
        """Digest of the layout whose shards are being put in place, "" where none are."""
        try:
            return (self.work / "creating").read_text()
        except OSError:
            return ""

    def mark_creating(self, layout_sha256: str) -> None:
        """Say durably that shards of this layout, without a record yet, are ours: a killed creation may go on."""
        durable.replace(str(self.work / "creating"), layout_sha256.encode())

    def lease(self) -> Lease:
        """Take the replica's lease; see :class:`dcr_mpi.lease.Lease`."""
        return Lease(self.work)

    def journals(self, version: int) -> Path:
        return self.work / f"v{version:06d}"

    def journal(self, version: int, shard: int) -> Path:
        return self.journals(version) / f"{shard:06d}.journal"

    def prepared(self, version: int) -> Path:
        """The local receipt of a finished prepare: written once all journals are durable."""
        return self.journals(version) / "prepared.json"

    def drop_journals(self, version: int) -> None:
        """Remove a version's journals; the local receipt goes first, so that no half-removed set looks finished."""
        if self.journals(version).exists():
            durable.remove(str(self.prepared(version)))
            shutil.rmtree(self.journals(version), ignore_errors=True)
            durable.fsync_dir(str(self.work))

    def drop_journals_until(self, version: int) -> None:
        """Remove a version's journals and older ones: of versions that were aborted and never looked at again."""
        for folder in self.work.glob("v[0-9]*"):
            if (number := int(folder.name[1:])) <= version:
                self.drop_journals(number)

    def checkpoint(self, layout: Layout) -> Checkpoint:
        """The replica's shards, to be read under ``layout``."""
        return Checkpoint(self.directory, layout)

    def check_layout(self, record: ReplicaRecord, layout: Layout) -> None:
        """Raise GeometryError where the store has another layout for this site than the replica was made in."""
        digest = sha256(dumps(layout))
        if record.layout_sha256 != digest:
            raise GeometryError(
                f"replica {self.directory}",
                found=f"layout {record.layout_sha256[:16]}",
                expected=f"the registered {digest[:16]}",
                remedy="create the replica anew, or give the new layout a site name of its own",
            )

    def check_size(self, found: Inventory, record: ReplicaRecord) -> None:
        """Raise CorruptInput where a shard is not the file, of the size, that it was when the replica was made."""
        stat = os.lstat(found.path)
        if not S_ISREG(stat.st_mode) or stat.st_nlink != 1:
            raise CorruptInput(
                f"replica shard {found.path}",
                found=f"a file with {stat.st_nlink} names" if S_ISREG(stat.st_mode) else "a link",
                expected="a file of its own: what is patched here would change under another name too",
                remedy="copy it over itself (cp FILE TMP && mv TMP FILE), then run the command again",
            )
        if record.files.get(found.file) != found.size:
            raise CorruptInput(
                f"replica shard {found.path}",
                found=f"{found.size} bytes",
                expected=f"{record.files.get(found.file)}",
                remedy="somebody changed it. " + RESTORE,
            )

    def binding(self, manifest_sha256: str, found: Inventory) -> Binding:
        return Binding(manifest_sha256, found.file, geometry_sha256(found))
