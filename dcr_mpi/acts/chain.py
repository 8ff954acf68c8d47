"""The chain of committed versions after a replica's, and how much of it can be folded into one journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..catalog import Catalog
from ..digest import sha256
from ..errors import CorruptInput
from ..jsonable import dumps
from ..model import Manifest, Open, PartEntry

MAX_LINKS = 64
_MAX_BUNDLE = 256 << 20


@dataclass(frozen=True)
class Link:
    """One committed version: its manifest, and the SHA-256 of that."""

    manifest: Manifest
    sha256: str


def committed_after(catalog: Catalog, version: int, until: int | None = None, limit: int = MAX_LINKS) -> list[Link]:
    """The committed versions after ``version``, oldest first, each made from the one before it.

    Raises
    ------
    NotReady
        One of them was collected: names the missing link.
    CorruptInput
        One of them is made from another version than the one before it.
    """
    links: list[Link] = []
    last = catalog.last_opened(version) if until is None else until
    for number in range(version + 1, last + 1):
        decision = catalog.decision(number)
        if decision is None or len(links) == limit:
            break
        if not decision.commit:
            continue
        found = catalog.manifest(number)
        if found is None:
            raise catalog.collected(number)
        before = links[-1].manifest.version if links else version
        if found[0].base != before or found[1] != decision.manifest_sha256:
            raise CorruptInput(
                f"chain of policy {catalog.name!r}",
                found=f"version {number} made from {found[0].base}, manifest {found[1][:16]}",
                expected=f"one made from {before}, manifest {decision.manifest_sha256[:16]}, which was committed",
                remedy="somebody wrote it who is no dcr encode: look at who may write to the store",
            )
        links.append(Link(*found))
    return links


def following(catalog: Catalog, version: int) -> int | None:
    """The first version after ``version`` that was not aborted, decided or not; None where there is none (yet)."""
    for number in range(version + 1, catalog.last_opened(version) + 1):
        decision = catalog.decision(number)
        if decision is None or decision.commit:
            return number
    return None


def missing_link(catalog: Catalog, version: int, at_hand: Callable[[Manifest], bool]) -> int | None:
    """The first committed version after ``version`` whose manifest is gone, or whose parts are not ``at_hand``; None
    where the chain is whole.

    What is collected is collected from the old end: where the first link stands, so do the others.
    """
    number = following(catalog, version)
    if number is None:
        return None
    if catalog.store.stat(catalog.version_key(number, "manifest.json")) is None:
        return number if catalog.decision(number) is not None else None
    links = committed_after(catalog, version)
    return next((link.manifest.version for link in links if not at_hand(link.manifest)), None)


def foldable(links: Sequence[Link], stored: Callable[[Manifest], bool]) -> list[Link]:
    """The first links that can be folded: cut alike, so that a block is the same words in all of them, and ``stored``.
    One that is not is taken alone: a publisher may serve it.

    The parts of one index travel as a bundle, which must stay small beside a rank's memory.
    """
    taken: list[Link] = []
    sizes: list[int] = []
    for link in links:
        alike = not taken or link.manifest.tiling == taken[0].manifest.tiling
        if not alike or (len(taken) == 1 and not stored(taken[0].manifest)) or (taken and not stored(link.manifest)):
            break
        sizes = [a + e.size for a, e in zip(sizes or [0] * len(link.manifest.parts), link.manifest.parts, strict=True)]
        if taken and max(sizes, default=0) > _MAX_BUNDLE:
            break
        taken.append(link)
    return taken


def bundles(links: Sequence[Link]) -> tuple[PartEntry, ...]:
    """One entry per part index for all links together: what the relay moves as one piece."""
    if len(links) == 1:
        return links[0].manifest.parts
    if not links:
        return ()
    return tuple(
        PartEntry(
            k,
            "",
            sum(e.size for e in every),
            sha256("\n".join(e.sha256 for e in every).encode()),
            every[-1].elements,
            sum(e.changed for e in every),
        )
        for k, every in enumerate(zip(*(link.manifest.parts for link in links), strict=True))
    )


def fetch_bundle(
    catalog: Catalog, links: Sequence[Link], entry: PartEntry, wait_s: float, poll_s: tuple[float, float]
) -> bytes:
    """The parts of one index of all links, end to end, each checked and waited for as :meth:`Contents.part` does."""
    return b"".join(catalog.contents.part(link.manifest.parts[entry.index], wait_s, poll_s) for link in links)


def opening(manifest: Manifest) -> Open:
    """The announcement that a manifest seals."""
    m = manifest
    return Open(m.policy_sha256, m.version, m.base, m.base_state, m.tiling, len(m.parts))


def binding_of(opened: Open, links: Sequence[Link]) -> str:
    """What a journal is bound to: a version's announcement, or all manifests of a fold in order."""
    return sha256(dumps(opened)) if len(links) < 2 else sha256("\n".join(link.sha256 for link in links).encode())
