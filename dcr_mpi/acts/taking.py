"""A site's side of the direct relay: find a publisher that answers, fetch parts from it, else from the store.

Rank 0, which alone can tell whose an offer is, chooses the publisher before the relay begins, and all ranks fetch from
that one: no request to the store is needed for any part. Should it go away meanwhile, parts that are in the store come
from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..catalog import Catalog
from ..direct import Inlet, Unreachable
from ..errors import NotReady
from ..jsonable import dumps, loads
from ..model import Manifest, Offer, Open, PartEntry
from .chain import Link
from .ports import Ports
from .prepare_plan import PrepareJob, check_not_aborted
from .stream import announced, decided_on, is_announced

BEHIND = (
    "while the version is undecided, let dcr encode run again with the same checkpoint: it serves the same parts. Once "
    "it is committed: dcr anchor at the trainer, then dcr refit --catch-up here"
)


@dataclass(frozen=True)
class _Choice:
    """``offer`` None: the store is the place to fetch from."""

    offer: Offer | None


def choose_publisher(ports: Ports, job: PrepareJob, opened: Open, links: Sequence[Link]) -> Offer | None:
    """The offer to fetch a version from; None: from the store. Every rank calls it.

    Raises
    ------
    NotReady
        No publisher answers within ``job.wait_s``, and nothing of the version is in the store.
    Conflict
        The version was aborted meanwhile.
    """
    if ports.inlet is None or len(links) > 1:
        return None
    inlet, catalog = ports.inlet, ports.catalog
    sealed = links[0].manifest if links else None

    def choose() -> bytes:
        what = f"publisher of version {opened.version}"
        try:
            found = catalog.wait(what, lambda: _look(catalog, inlet, opened, sealed), job.wait_s, job.poll_s)
        except NotReady:
            patience = f" within {job.wait_s:g} s" if job.wait_s else ""
            raise _nobody(opened.version, f"no publisher that answers{patience}, and none in the store") from None
        return dumps(found)

    with ports.events.stage("wait"):
        return loads(_Choice, ports.once("publisher", choose), "publisher").offer


def _look(catalog: Catalog, inlet: Inlet, opened: Open, sealed: Manifest | None) -> _Choice | None:
    """An offer that is good, or that the store is; None where there is neither, yet."""
    version = opened.version
    for offer in catalog.offers(version):
        mine = (len(offer.owners), offer.policy_sha256) == (opened.parts, opened.policy_sha256)
        if mine and inlet.answers(offer):
            return _Choice(offer)
    if catalog.is_stored(sealed) if sealed is not None else is_announced(catalog, version, 0):
        return _Choice(None)
    check_not_aborted(catalog, version)
    return None


def take(
    ports: Ports,
    job: PrepareJob,
    offer: Offer,
    opened: Open,
    index: int,
    sealed: PartEntry | None,
    limit: int,
) -> bytes:
    """A part from a publisher, or from the store where that does not answer any more and the part is there.

    Raises
    ------
    NotReady
        It is nowhere.
    Conflict
        The version was decided on before it was sealed: aborted, that is.
    CorruptInput
        It is not what its entry says, or has more than ``limit`` bytes.
    """
    assert ports.inlet is not None
    catalog, version = ports.catalog, opened.version
    try:
        known = sealed.sha256 if sealed is not None else None
        entry, data = ports.inlet.fetch(offer, index, known, limit, job.wait_s)
        catalog.check_entry(entry, version, index, f"part {index} of version {version}, from its publisher")
        return data
    except Unreachable as error:
        there = sealed or announced(catalog, version, index)
        if there is None or there.size > limit or catalog.store.stat(there.key) is None:
            if sealed is None and catalog.store.stat(catalog.version_key(version, "decision.json")) is not None:
                raise decided_on(f"part {index} of version {version}") from None
            raise _nobody(version, f"part {index} neither in the store nor at {error}") from None
        return catalog.part(there, job.wait_s, job.poll_s)


def explain(ports: Ports, opened: Open, links: Sequence[Link], part: int, error: NotReady) -> NotReady:
    """The error of a part that is not in the store; in other words where it never was to be there."""
    catalog = ports.catalog
    for link in links:
        version, key = link.manifest.version, link.manifest.parts[part].key
        if catalog.store.stat(key) is None and catalog.has_offer(version):
            return _nobody(
                version, f"part {part} not in the store, where its publisher had not copied it (direct.store)"
            )
    if not links and ports.inlet is None and catalog.has_offer(opened.version):
        return NotReady(
            error.what,
            found=f"{error.found}; its publisher serves parts itself",
            expected="relay.transport: direct here too",
            remedy="set it in this site's configuration, and run this again",
        )
    return error


def is_within_reach(ports: Ports, manifest: Manifest) -> bool:
    """Whether the parts of a sealed version can be had: from the store, or from a publisher that answers."""
    inlet, catalog = ports.inlet, ports.catalog
    if catalog.has_copy(manifest):
        return True
    return inlet is not None and any(inlet.answers(offer) for offer in catalog.offers(manifest.version))


def _nobody(version: int, found: str) -> NotReady:
    return NotReady(
        f"parts of version {version}",
        found=found,
        expected="a publisher that serves them (relay.transport: direct), or a copy in the store",
        remedy=BEHIND,
    )
