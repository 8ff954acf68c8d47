"""A site's replica on disk: its shards, its record, and the working directory ``.dcr`` beside them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from stat import S_ISREG

from .. import durable
from ..checkpoint import Checkpoint, geometry_sha256
from ..digest import content_sha256
from ..errors import BaseMismatch, CorruptInput, GeometryError, NotReady, ResourceError, from_os_error
from ..hdf5 import Inventories, Inventory
from ..journal import Binding
from ..jsonable import dumps, loads
from ..lease import Fence
from ..model import Layout, Receipt, ReplicaRecord
from ..units import bytes_text

RESTORE = "Restore it: dcr repair --site SITE; or remove it, then dcr init --site SITE and dcr refit --catch-up"


class Replica:
    """Paths and record of one replica. Shards lie in ``directory``; nothing else in it is ever touched."""

    def __init__(self, directory: Path, site: str) -> None:
        self.directory, self.site = Path(directory), site
        self.work = self.directory / ".dcr"
        self.record_path = self.work / "replica.json"

    def record(self) -> ReplicaRecord | None:
        """The record, or None where there is no replica yet."""
        path = self.record_path
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

    def save(self, record: ReplicaRecord, fence: Fence) -> None:
        durable.make_dirs(str(self.work))
        durable.replace(str(self.record_path), dumps(record), fence.check)

    def creating(self) -> str:
        """Digest of the layout whose shards are being put in place, "" where none are."""
        try:
            return (self.work / "creating").read_text()
        except OSError:
            return ""

    def mark_creating(self, layout_sha256: str, fence: Fence) -> None:
        """Say durably that shards of this layout, without a record yet, are ours: a killed creation may go on."""
        durable.replace(str(self.work / "creating"), layout_sha256.encode(), fence.check)

    def journals(self, version: int, epoch: int) -> Path:
        """The set of a version's journals that the job with this lease epoch writes: no other job ever does."""
        return self._sets(version) / f"e{epoch:08d}"

    def sets(self, version: int) -> list[Path]:
        """Every set of a version's journals, finished or not, the newest epoch first."""
        return sorted(self._sets(version).glob("e[0-9]*"), reverse=True)

    def sealed(self, version: int) -> Path | None:
        """The newest finished set, which apply replays: the one with a local receipt."""
        return next((s for s in self.sets(version) if prepared(s).exists()), None)

    def sealed_versions(self) -> list[int]:
        return sorted({int(p.parts[-3][1:]) for p in self.work.glob("v*/e*/prepared.json")})

    def seal(self, version: int, receipt: Receipt, fence: Fence) -> None:
        """The local receipt that finishes this job's set of a version's journals."""
        durable.replace(prepared(self.journals(version, fence.epoch)), dumps(receipt), fence.check)

    def drop_sets(self, version: int, before: int, fence: Fence, *, sealed: bool) -> None:
        """Remove a version's sets of epochs ``before`` this one, finished ones too where ``sealed``."""
        for folder in self.sets(version):
            if int(folder.name[1:]) < before and (sealed or not prepared(folder).exists()):
                fence.check()
                _drop(folder)

    def drop_journals(self, version: int, fence: Fence) -> None:
        """Remove all of a version's journals."""
        for folder in self.sets(version):
            fence.check()
            _drop(folder)
        fence.check()
        if self._sets(version).exists():
            shutil.rmtree(self._sets(version), ignore_errors=True)
            durable.fsync_dir(str(self.work))

    def journaled(self) -> list[int]:
        """The versions of which there are journals, or what is left of them. Of the replica's own version or an older
        one there are some only where an apply was cut short."""
        return sorted(int(folder.name[1:]) for folder in self.work.glob("v[0-9]*"))

    def _sets(self, version: int) -> Path:
        return self.work / f"v{version:06d}"

    def check_room(self, need: int, what: str, why: str) -> None:
        """Raise ResourceError where the file system has less than ``need`` bytes free for ``what``."""
        free = shutil.disk_usage(self.work).free
        if free < need:
            raise ResourceError(
                f"space for the {what} in {self.directory}",
                found=f"{bytes_text(free)} free",
                expected=f"about {bytes_text(need)} for {why}",
                remedy="make room on that file system, then run the same command again",
            )

    def checkpoint(self, layout: Layout, known: Inventories | None = None) -> Checkpoint:
        """The replica's shards, to be read under ``layout``."""
        return Checkpoint(self.directory, layout, known=known)

    def check_layout(self, record: ReplicaRecord, layout: Layout) -> None:
        """Raise GeometryError where the store has another layout for this site than the replica was made in."""
        digest = content_sha256(layout)
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

    def binding(self, versions_sha256: str, found: Inventory) -> Binding:
        return Binding(versions_sha256, found.file, geometry_sha256(found))


def journal(journals: Path, shard: int) -> Path:
    """A shard's journal in a set of them."""
    return journals / f"{shard:06d}.journal"


def prepared(journals: Path) -> Path:
    """The local receipt of a finished prepare: written once all journals of the set are durable."""
    return journals / "prepared.json"


def _drop(journals: Path) -> None:
    """The local receipt goes first, so that no half-removed set looks finished."""
    durable.remove(prepared(journals))
    shutil.rmtree(journals, ignore_errors=True)
    if journals.parent.exists():
        durable.fsync_dir(journals.parent)
