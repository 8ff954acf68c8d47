"""A site's side of the direct relay: find a publisher that answers, fetch parts from it, else from the store.

Rank 0 chooses the publisher before the relay begins, one that answers, and all ranks fetch from that: no request to the
store is needed for any part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..catalog import Catalog
from ..direct import Inlet, Unreachable
from ..errors import CorruptInput, NotAuthentic, NotReady
from ..model import Manifest, Offer, Open, PartEntry
from ..waiting import wait_for
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
    """``offer`` None: the store is the place to fetch from. ``signed``: by the word of rank 0, offers must be."""

    offer: Offer | None
    signed: bool


def find_supply(ports: Ports, job: PrepareJob, opened: Open, links: Sequence[Link]) -> Supply | None:
    """Where this rank gets the parts of a version; None: from the store alone. Every rank calls it.

    Raises
    ------
    NotReady
        No publisher answers within ``job.wait_s``, and nothing of the version is in the store.
    Overtaken
        The version was aborted meanwhile.
    """
    if ports.inlet is None or len(links) > 1:
        return None
    inlet, catalog = ports.inlet, ports.catalog
    sealed = links[0].manifest if links else None

    def choose() -> _Choice:
        what = f"publisher of version {opened.version}"
        try:
            return wait_for(what, lambda: _look(catalog, inlet, opened, sealed), job.wait_s, job.poll_s)
        except NotReady:
            patience = f" within {job.wait_s:g} s" if job.wait_s else ""
            raise _nobody(opened.version, f"no publisher that answers{patience}, and none in the store") from None

    with ports.events.stage("offer"):
        choice = ports.agree(_Choice, "publisher", choose)
    if choice.offer is None:
        return None
    return Supply(catalog, inlet, job, opened, choice.offer, choice.signed == catalog.signed)


def _look(catalog: Catalog, inlet: Inlet, opened: Open, sealed: Manifest | None) -> _Choice | None:
    """An offer that is good, or that the store is; None where there is neither, yet."""
    version = opened.version
    for offer in catalog.offers(version):
        if _is_of(offer, opened) and inlet.answers(offer):
            return _Choice(offer, catalog.signed)
    if catalog.is_stored(sealed) if sealed is not None else is_announced(catalog, version, 0):
        return _Choice(None, catalog.signed)
    check_not_aborted(catalog, version)
    return None


def _is_of(offer: Offer, opened: Open) -> bool:
    return (len(offer.owners), offer.policy_sha256) == (opened.parts, opened.policy_sha256)


class Supply:
    """Where one rank gets the parts of a version that is served: from a publisher, and if that goes away, from the
    store or from a publisher that came after it, whichever has the part first. Safe from several threads.

    ``witness``: this rank can tell whose an offer is. One that cannot stays with the first.
    """

    def __init__(
        self, catalog: Catalog, inlet: Inlet, job: PrepareJob, opened: Open, offer: Offer, witness: bool
    ) -> None:
        self._catalog, self._inlet, self._job, self._opened = catalog, inlet, job, opened
        self._offer: Offer | None = offer
        self._witness, self._lost = witness, set[str]()
        self._lock = threading.Lock()

    def take(self, index: int, sealed: PartEntry | None, limit: int) -> bytes:
        """A part, waited for as long as the job may.

        Raises
        ------
        NotReady
            It is nowhere.
        Overtaken
            The version was decided on before it was sealed: aborted, that is.
        CorruptInput
            It is not what its entry says, or has more than ``limit`` bytes.
        """
        catalog, version, job = self._catalog, self._opened.version, self._job
        what, end, why = f"part {index} of version {version}", time.monotonic() + job.wait_s, ""

        def look() -> bytes | None:
            nonlocal why
            while (offer := self._current()) is not None:
                left = end - time.monotonic() if job.wait_s else 0.0
                if left < 0:
                    return None
                try:
                    known = sealed.sha256 if sealed is not None else None
                    entry, data = self._inlet.fetch(offer, index, known, limit, left)
                    catalog.contents.check_entry(entry, version, index, f"{what}, from its publisher")
                    return data
                except Unreachable as error:
                    why = str(error)
                    self._drop(offer)
            there = sealed or announced(catalog, version, index)
            if there is not None and there.size <= limit and catalog.store.stat(there.key) is not None:
                return catalog.contents.part(there, job.wait_s, job.poll_s)
            if sealed is None and catalog.store.stat(catalog.version_key(version, "decision.json")) is not None:
                raise decided_on(what)
            return None

        try:
            return wait_for(what, look, job.wait_s, job.poll_s)
        except NotReady:
            raise _nobody(version, f"part {index} neither in the store nor at {why or 'any publisher'}") from None

    def _current(self) -> Offer | None:
        """The publisher that all threads of this rank go to."""
        with self._lock:
            if self._offer is None and self._witness:
                self._offer = next(filter(self._serves, self._successors()), None)
            return self._offer

    def _serves(self, offer: Offer) -> bool:
        return offer.token not in self._lost and _is_of(offer, self._opened) and self._inlet.answers(offer)

    def _successors(self) -> list[Offer]:
        try:
            return self._catalog.offers(self._opened.version)
        except (NotAuthentic, CorruptInput):
            return []  # in the midst of a relay others may still finish; whoever begins anew is told

    def _drop(self, offer: Offer) -> None:
        with self._lock:
            self._lost.add(offer.token)
            if self._offer is offer:
                self._offer = None


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
