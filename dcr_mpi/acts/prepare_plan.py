"""What a prepare has to do: which versions, from which base, at a replica that is fit for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..catalog import Catalog, check_policy
from ..digest import content_sha256
from ..errors import BaseMismatch, GeometryError, NotReady, Overtaken
from ..model import Open, ReplicaRecord, SiteLayout, Tiling
from ..waiting import wait_for
from .chain import Link, binding_of, committed_after, foldable, following, opening
from .ports import Ports
from .replica import RESTORE, Replica


@dataclass(frozen=True)
class PrepareJob:
    """What to prepare. ``version`` None: the next one that is made from the replica's.

    ``wait_s``: for its announcement, then for each part while it is being encoded, then for its manifest; with 0 only
    a sealed version is prepared.

    ``fold``: all committed versions after the replica's at once, as far as they are cut alike, ``until`` a version.
    ``report``: put the receipt in the store.
    ``degree`` and ``window`` are the relay tree's children per rank and the parts in hand per rank.
    """

    site: str
    replica: Path
    version: int | None = None
    wait_s: float = 0.0
    poll_s: tuple[float, float] = (0.05, 2.0)
    degree: int = 2
    window: int = 4
    fold: bool = False
    until: int | None = None
    report: bool = True


@dataclass(frozen=True)
class PreparePlan:
    """``opened``: what to prepare, None where the replica is up to date; ``links``: its manifest, or those of all
    versions of a fold; none where it is not sealed yet."""

    opened: Open | None
    links: tuple[Link, ...]
    record: ReplicaRecord

    @property
    def binding(self) -> str:
        """What the journals are bound to."""
        assert self.opened is not None
        return binding_of(self.opened, self.links)


def prepare_plan(ports: Ports, job: PrepareJob, replica: Replica) -> PreparePlan:
    """What there is to do at this replica. Rank 0's work; puts nothing.

    Raises
    ------
    NotReady, BaseMismatch, GeometryError, Overtaken
        As :func:`dcr_mpi.acts.prepare.prepare`.
    """
    record = replica.need()
    catalog = ports.catalog
    _, policy_sha = catalog.policy(f"replica {replica.directory} is at version {record.version} of it")
    check_policy(record.policy_sha256, policy_sha, f"replica {replica.directory}")
    if record.applying is not None:
        raise NotReady(
            f"replica {replica.directory}",
            found=f"an interrupted apply of version {record.applying}",
            expected="a whole version",
            remedy="run dcr apply: it rolls forward from the journal",
        )
    replica.check_layout(record, catalog.layout(job.site).layout)
    if job.fold:
        links = foldable(committed_after(catalog, record.version, job.until), catalog.has_copy)
        for link in links:
            check_policy(link.manifest.policy_sha256, policy_sha, f"manifest of version {link.manifest.version}")
        if links:
            _check_base(replica, record, opening(links[0].manifest))
        return PreparePlan(opening(links[-1].manifest) if links else None, tuple(links), record)
    version = job.version if job.version is not None else next_version(ports, record, job.wait_s, job.poll_s)
    if version is None:
        return PreparePlan(None, (), record)
    found = catalog.manifest(version)
    opened = opening(found[0]) if found is not None else _opened(ports, job, version)
    check_policy(opened.policy_sha256, policy_sha, f"version {version}")
    check_not_aborted(catalog, version)
    if found is not None and record.version == version and record.state == found[0].state:
        return PreparePlan(None, (), record)
    _check_base(replica, record, opened)
    return PreparePlan(opened, (Link(*found),) if found is not None else (), record)


def _opened(ports: Ports, job: PrepareJob, version: int) -> Open:
    """The announcement of a version that is not sealed yet."""
    catalog = ports.catalog
    decision = catalog.decision(version)
    if decision is not None and decision.commit:
        raise catalog.collected(version)
    opened = wait_for(f"version {version}", lambda: catalog.opened(version), job.wait_s, job.poll_s)
    if not job.wait_s:
        raise NotReady(
            f"manifest of version {version}",
            found="a version that is being encoded",
            expected="a sealed one",
            remedy="wait for it (dcr refit --wait S), or look whether dcr encode runs",
        )
    return opened


def check_not_aborted(catalog: Catalog, version: int) -> None:
    """Raise Overtaken where it was decided to abort a version."""
    decision = catalog.decision(version)
    if decision is not None and not decision.commit:
        raise Overtaken(
            f"version {version}",
            found=f"aborted ({decision.reason})",
            expected="a version to prepare",
            remedy="nothing to do: wait for the next version",
        )


def _check_base(replica: Replica, record: ReplicaRecord, first: Open) -> None:
    """Raise BaseMismatch unless a version is made from the replica's."""
    if (record.version, record.state) != (first.base, first.base_state):
        raise BaseMismatch(
            f"replica {replica.directory}",
            found=f"version {record.version}, state {record.state[:16]}",
            expected=f"version {first.base}, state {first.base_state[:16]}, the base of version {first.version}",
            remedy="let dcr refit choose the next version in the chain (--catch-up takes them all). Or: " + RESTORE,
        )


def next_version(
    ports: Ports, record: ReplicaRecord, wait_s: float = 0.0, poll_s: tuple[float, float] = (0.05, 2.0)
) -> int | None:
    """The version after a replica's: the first later one that was not aborted; None where there is none (yet)."""

    def look() -> int | None:
        return following(ports.catalog, record.version)

    if not wait_s:
        return look()
    return wait_for(f"a version after {record.version}", look, wait_s, poll_s)


def check_fits(tiling: Tiling, site: SiteLayout, version: int) -> None:
    """Raise GeometryError unless a version's tiles were cut for this site's registered layout."""
    digest = content_sha256(site.layout)
    if tiling.layouts.get(site.site) != digest:
        have = (
            "cut for sites " + str(sorted(tiling.layouts))
            if site.site not in tiling.layouts
            else "cut for another layout of this site"
        )
        raise GeometryError(
            f"version {version}",
            found=have,
            expected=f"tiles for {site.site!r} with layout {digest[:16]}",
            remedy="let the trainer list this site in its configuration (trainer.sites): versions encoded from then on "
            f"fit; to join at the last one before, remove the replica and run dcr init --site {site.site} --from DIR",
        )
