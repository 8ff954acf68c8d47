"""collect: remove from the store what no registered site needs any more (``dcr gc``).

Kept for good: the policy, layouts, every version's announcement and decision (they are small, and the numbering hangs
on them), and each site's newest receipt. What is deleted goes manifest first: a reader meets a version that is not
there rather than one with holes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..catalog import Catalog
from ..store import Entry

_VERSIONED = re.compile(
    r"(versions|anchors)/([0-9]{6,})/(?:(open|manifest|decision)\.json|(parts)/[0-9]{6,}-[0-9a-f]{32}|"
    r"(stream|direct)/[0-9]{6,}\.json|"
    r"(prepared|applied)/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json)"
)
_SITE = re.compile(r"/([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.json")


@dataclass(frozen=True)
class Retention:
    """``anchors``: the newest so many stay. ``lease_s``: how long a silent site's next delta is kept, in seconds."""

    anchors: int = 2
    lease_s: float = 7 * 86400.0


@dataclass
class Seen:
    """A policy's objects by what they are; keys are below the policy's folder, ages in seconds."""

    versions: dict[int, dict[str, list[Entry]]] = field(default_factory=dict)
    anchors: dict[int, dict[str, list[Entry]]] = field(default_factory=dict)
    layouts: dict[str, Entry] = field(default_factory=dict)
    holds: list[tuple[str, str, Entry]] = field(default_factory=list)  # site, number
    tilings: dict[str, Entry] = field(default_factory=dict)
    strange: list[Entry] = field(default_factory=list)


@dataclass(frozen=True)
class Collected:
    """What a collection did, or (``dry``) would do. ``floor``: the oldest version that can still be reached."""

    dry: bool
    floor: int
    anchors: tuple[int, ...]  # kept
    sites: dict[str, int | None]  # version that a site with a lease goes on from; None: it begins at an anchor
    expired: tuple[str, ...]  # sites whose lease ran out
    objects: int
    bytes: int
    uploads: int  # unfinished ones swept away
    strange: int  # objects that are not ours, left alone
    keys: tuple[str, ...]


def collect(catalog: Catalog, retention: Retention, *, dry: bool = False) -> Collected:
    """Delete what is not needed; one process's work. Run again after a failure, it goes on.

    A site's lease is its newest sign of life (layout, receipt, hold): while that is younger than ``lease_s``, every
    version after the one that it has stays. The age of an object is told by the store.

    Raises
    ------
    NotReady
        There is no such policy, or nothing is committed.
    StoreDenied
        These credentials may not list or delete.
    """
    catalog.policy()
    seen = look(catalog.name, catalog.store.walk(catalog.name))
    committed = catalog.last_committed(catalog.last_opened())[0].version
    anchors = sorted(n for n, leaves in seen.anchors.items() if "manifest" in leaves and n <= committed)
    sites, expired = _sites(catalog, seen, retention)
    at = [version for version in sites.values() if version is not None]
    kept = set(anchors[-retention.anchors :])
    for version in at:  # what a site at this version would be repaired from
        kept |= set([a for a in anchors if a <= version][-1:])
    floor = min([committed, *kept, *at]) if anchors else 0  # nothing else could bring a silent site back
    doomed = [
        *_versions(catalog, seen.versions, floor, committed),
        *_anchors(seen.anchors, kept, committed, retention),
        *(entry for _, _, entry in seen.holds if entry.age_s > retention.lease_s),
    ]
    doomed += _tilings(catalog, seen, {e.key for e in doomed}, retention)
    uploads = 0
    if not dry:
        for entry in sorted(doomed, key=lambda e: not e.key.endswith("/manifest.json")):
            catalog.store.delete(entry.key)
        uploads = catalog.store.sweep(catalog.name, retention.lease_s)
    return Collected(
        dry,
        floor,
        tuple(sorted(kept)),
        sites,
        tuple(sorted(expired)),
        len(doomed),
        sum(e.size for e in doomed),
        uploads,
        len(seen.strange),
        tuple(e.key for e in doomed),
    )


def look(policy: str, entries: Iterable[Entry]) -> Seen:
    """Sort a policy's objects by what their keys say."""
    seen = Seen()
    for entry in entries:
        key = entry.key.removeprefix(policy + "/")
        folder, _, name = key.partition("/")
        if found := _VERSIONED.fullmatch(key):
            kind = seen.versions if found[1] == "versions" else seen.anchors
            leaf = next(part for part in found.groups()[2:] if part)
            kind.setdefault(int(found[2]), {}).setdefault(leaf, []).append(entry)
        elif folder == "layouts" and (site := _SITE.fullmatch("/" + name)):
            seen.layouts[site[1]] = entry
        elif folder == "holds" and (held := re.fullmatch(r"([^/]+)/([0-9a-f]{32})\.json", name)):
            seen.holds.append((held[1], held[2], entry))
        elif folder == "tilings" and (tiling := re.fullmatch(r"([0-9a-f]{64})\.json\.zst", name)):
            seen.tilings[tiling[1]] = entry
        elif key != "policy.json":
            seen.strange.append(entry)
    return seen


def _positions(seen: Seen) -> dict[str, int | None]:
    """The newest version that each registered site applied."""
    at: dict[str, int | None] = dict.fromkeys(seen.layouts)
    for version in sorted(seen.versions):
        at.update({s: version for s in _named(seen.versions[version], "applied") if s in at})
    return at


def _named(leaves: Mapping[str, list[Entry]], act: str) -> dict[str, Entry]:
    """A version's receipts of an act, by site."""
    found = ((_SITE.search(entry.key.rpartition(act)[2]), entry) for entry in leaves.get(act, []))
    return {match[1]: entry for match, entry in found if match}


def _sites(catalog: Catalog, seen: Seen, retention: Retention) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """Where the sites with a lease go on from, and those without one."""
    life = {site: entry.age_s for site, entry in seen.layouts.items()}
    for leaves in seen.versions.values():
        for act in ("prepared", "applied"):
            for site, entry in _named(leaves, act).items():
                life[site] = min(life.get(site, entry.age_s), entry.age_s)
    at = _positions(seen)
    heard: dict[str, float] = {}
    for leaves in seen.versions.values():
        heard.update({s: min(heard.get(s, e.age_s), e.age_s) for s, e in _named(leaves, "applied").items()})
    for site, number, entry in seen.holds:
        life[site] = min(life.get(site, entry.age_s), entry.age_s)
        if site not in at or entry.age_s > min(retention.lease_s, heard.get(site, entry.age_s)):
            continue  # it ran out, or the site has reported since
        if (hold := catalog.hold(site, number)) is not None:
            have = at[site]
            at[site] = hold.version if have is None else min(have, hold.version)
    expired = tuple(site for site in at if life[site] > retention.lease_s)
    return {site: version for site, version in at.items() if site not in expired}, expired


def _versions(
    catalog: Catalog,
    versions: Mapping[int, Mapping[str, list[Entry]]],
    floor: int,
    committed: int,
) -> list[Entry]:
    """Parts and prepared receipts up to the floor; before it manifests too, and receipts but a site's newest."""
    newest: dict[str, int] = {}
    for version in sorted(versions):
        newest.update(dict.fromkeys(_named(versions[version], "applied"), version))
    out: list[Entry] = []
    for version, leaves in versions.items():
        if version > floor and not (version < committed and _aborted(catalog, version)):
            continue
        out += [*leaves.get("parts", []), *leaves.get("stream", []), *leaves.get("direct", [])]
        if version != floor:
            out += [*leaves.get("manifest", []), *leaves.get("prepared", [])]
            out += [e for site, e in _named(leaves, "applied").items() if newest[site] != version]
    return out


def _aborted(catalog: Catalog, version: int) -> bool:
    decision = catalog.decision(version)
    return decision is not None and not decision.commit


def _anchors(
    anchors: Mapping[int, Mapping[str, list[Entry]]], kept: set[int], committed: int, retention: Retention
) -> list[Entry]:
    """Anchors that are not kept; unfinished ones once nobody can be at work on them."""
    out: list[Entry] = []
    for version, leaves in anchors.items():
        every = [e for entries in leaves.values() for e in entries]
        unfinished = "manifest" not in leaves and all(e.age_s > retention.lease_s for e in every)
        if version not in kept and version <= committed and ("manifest" in leaves or unfinished):
            out += every
    return out


def _tilings(catalog: Catalog, seen: Seen, doomed: set[str], retention: Retention) -> list[Entry]:
    """Tilings that nothing names which stays; young ones stay too: a version may be about to name them."""
    named: set[str] = set()
    for kind, anchor in ((seen.versions, False), (seen.anchors, True)):
        for version, leaves in kind.items():
            manifests = leaves.get("manifest", [])
            if manifests and manifests[0].key not in doomed:
                found = catalog.manifest(version, anchor)
                named |= {found[0].tiling} if found else set()
            elif not manifests and "open" in leaves and _undecided(catalog, version, anchor):
                opened = catalog.opened(version, anchor)
                named |= {opened.tiling} if opened else set()
    return [e for digest, e in seen.tilings.items() if digest not in named and e.age_s > retention.lease_s]


def _undecided(catalog: Catalog, version: int, anchor: bool) -> bool:
    return anchor or catalog.decision(version) is None
