"""What a prepare has to do: which versions, from which base, at a replica that is fit for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..catalog import check_policy
from ..digest import sha256
from ..errors import BaseMismatch, Conflict, GeometryError, NotReady
from ..jsonable import dumps
from ..model import Manifest, ReplicaRecord, SiteLayout, Tiling
from .chain import Link, binding_of, committed_after, foldable, following
from .ports import Ports
from .replica import RESTORE, Replica


@dataclass(frozen=True)
class PrepareJob:
    """What to prepare. ``version`` None: the next one that is made from the replica's. ``wait_s``: for its manifest,
    and for each part that the store shows later than the manifest.

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
    links: tuple[Link, ...]  # what to prepare: mostly one version; none where the replica is up to date
    record: ReplicaRecord
    layout: SiteLayout

    @property
    def last(self) -> Manifest:
        return self.links[-1].manifest

    @property
    def binding(self) -> str:
        """What the journals are bound to."""
        return binding_of([link.sha256 for link in self.links])


def prepare_plan(ports: Ports, job: PrepareJob, replica: Replica) -> PreparePlan:
    """What there is to do at this replica. Rank 0's work; puts nothing.

    Raises
    ------
    NotReady, BaseMismatch, GeometryError, Conflict
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
    layout = catalog.layout(job.site)
    replica.check_layout(record, layout.layout)
    if job.fold:
        links = foldable(committed_after(catalog, record.version, job.until))
        for link in links:
            check_policy(link.manifest.policy_sha256, policy_sha, f"manifest of version {link.manifest.version}")
        return PreparePlan(_from_base(replica, record, tuple(links)), record, layout)
    version = job.version if job.version is not None else next_version(ports, record, job.wait_s, job.poll_s)
    if version is None:
        return PreparePlan((), record, layout)
    found = catalog.manifest(version)
    if found is None:
        decision = catalog.decision(version)
        if decision is not None and decision.commit:
            raise catalog.collected(version)
        what = f"manifest of version {version}"
        found = catalog.wait(what, lambda: catalog.manifest(version), job.wait_s, job.poll_s)
    manifest, manifest_sha = found
    check_policy(manifest.policy_sha256, policy_sha, f"manifest of version {version}")
    decision = catalog.decision(version)
    if decision is not None and not decision.commit:
        raise Conflict(
            f"version {version}",
            found=f"aborted ({decision.reason})",
            expected="a version to prepare",
            remedy="nothing to do: wait for the next version",
        )
    if record.version == version and record.state == manifest.state:
        return PreparePlan((), record, layout)
    return PreparePlan(_from_base(replica, record, (Link(manifest, manifest_sha),)), record, layout)


def _from_base(replica: Replica, record: ReplicaRecord, links: tuple[Link, ...]) -> tuple[Link, ...]:
    """The links, which must begin at the replica's version and state."""
    if links:
        first = links[0].manifest
        if (record.version, record.state) != (first.base, first.base_state):
            raise BaseMismatch(
                f"replica {replica.directory}",
                found=f"version {record.version}, state {record.state[:16]}",
                expected=f"version {first.base}, state {first.base_state[:16]}, the base of version {first.version}",
                remedy="let dcr refit choose the next version in the chain (--catch-up takes them all). Or: " + RESTORE,
            )
    return links


def next_version(
    ports: Ports, record: ReplicaRecord, wait_s: float = 0.0, poll_s: tuple[float, float] = (0.05, 2.0)
) -> int | None:
    """The version after a replica's: the first later one that was not aborted; None where there is none (yet)."""

    def look() -> int | None:
        return following(ports.catalog, record.version)

    if not wait_s:
        return look()
    return ports.catalog.wait(f"a version after {record.version}", look, wait_s, poll_s)


def check_fits(tiling: Tiling, site: SiteLayout, version: int) -> None:
    """Raise GeometryError unless a version's tiles were cut for this site's registered layout."""
    digest = sha256(dumps(site.layout))
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
