"""The store's objects by meaning: which key holds what, and typed put-once and read for each of them.

Parts and tilings, which are large and named by their content, are in :mod:`.contents`.
"""

from __future__ import annotations

import re
import uuid

from .contents import SHA256, Contents, version_key
from .documents import SMALL, Documents
from .errors import BaseMismatch, Conflict, CorruptInput, NotReady, UsageError
from .model import Decision, Hold, Manifest, Offer, Open, Policy, Receipt, SiteLayout
from .signing import NO_KEYS, Keyring, Place
from .signing.api import site_role
from .store.api import Store

_HOST = re.compile(r"[0-9A-Za-z._:%-]{1,255}")  # a name, an IPv4 or an IPv6 address
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(kind: str, name: str) -> str:
    """A policy's or site's name, fit to be part of a key; raises UsageError otherwise."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{kind} name", found=repr(name[:80]), expected="1 to 64 of [A-Za-z0-9._-], a letter or digit first"
        )
    return name


class Catalog:
    """One policy's objects in a store. Cheap to make; safe from several threads.

    The publisher signs the policy, announcements, manifests and decisions; a site signs its layout and receipts.
    Tilings and parts are named by their digest in what is signed.
    """

    def __init__(self, store: Store, policy: str, keys: Keyring = NO_KEYS) -> None:
        self.store, self.name = store, check_name("policy", policy)
        self.contents = Contents(store, policy)
        self._documents = Documents(store, keys)
        # Put once, so read once.
        self._policy: tuple[Policy, str] | None = None
        self._layouts: dict[str, SiteLayout] = {}

    @property
    def signed(self) -> bool:
        """Whether what is read must be signed."""
        return self._documents.signed

    # -- keys -------------------------------------------------------------------------------------------------

    def version_key(self, version: int, leaf: str, anchor: bool = False) -> str:
        return version_key(self.name, version, leaf, anchor)

    def _policy_place(self) -> Place:
        return Place(f"{self.name}/policy.json")

    def _layout_place(self, site: str) -> Place:
        return Place(f"{self.name}/layouts/{check_name('site', site)}.json", site_role(site))

    def _version_place(self, version: int, leaf: str, anchor: bool = False) -> Place:
        return Place(self.version_key(version, leaf, anchor), version=version)

    def _receipt_place(self, version: int, act: str, site: str) -> Place:
        return Place(self.version_key(version, f"{act}/{check_name('site', site)}.json"), site_role(site), version)

    def _hold_place(self, site: str, number: str) -> Place:
        return Place(f"{self.name}/holds/{check_name('site', site)}/{number}.json", site_role(site))

    # -- typed objects ----------------------------------------------------------------------------------------

    def policy(self, known_by: str = "") -> tuple[Policy, str]:
        """The policy and the SHA-256 of its text, which everything else is bound to.

        ``known_by``: who has met this policy before, if anybody has; a store without it is then no first start.
        """
        if self._policy is None:
            remedy = (
                f"check store.url: {known_by}; do not run dcr init" if known_by else "run dcr init at the trainer first"
            )
            self._policy = self._documents.need(Policy, self._policy_place(), remedy, policy=self.name)
        return self._policy

    def put_policy(self, policy: Policy) -> str:
        lost = "this policy exists with other tensors or another layout"
        return self._documents.put(self._policy_place(), policy, lost)

    def layout(self, site: str) -> SiteLayout:
        if site not in self._layouts:
            remedy = f"run dcr init --site {site} at that site first"
            self._layouts[site] = self._documents.need(SiteLayout, self._layout_place(site), remedy, site=site)[0]
        return self._layouts[site]

    def put_layout(self, layout: SiteLayout) -> str:
        lost = "this site is registered with another layout: register a new site name for it"
        return self._documents.put(self._layout_place(layout.site), layout, lost)

    def opened(self, version: int, anchor: bool = False) -> Open | None:
        place = self._version_place(version, "open.json", anchor)
        found = self._documents.read(Open, place, SMALL, version=version)
        return found[0] if found else None

    def put_open(self, opened: Open, anchor: bool = False) -> Open:
        """Announce a version; returns the announcement that stands (another publisher's, where it came first)."""
        place = self._version_place(opened.version, "open.json", anchor)
        return self._documents.put_first(Open, place, opened, SMALL, version=opened.version)

    def manifest(self, version: int, anchor: bool = False) -> tuple[Manifest, str] | None:
        """A version's manifest and its digest."""
        place = self._version_place(version, "manifest.json", anchor)
        found = self._documents.read(Manifest, place, version=version)
        if found is not None:
            self._check_manifest(found[0], version, anchor, place.key)
        return found

    def _check_manifest(self, manifest: Manifest, version: int, anchor: bool, key: str) -> None:
        """Every number that is acted on must be what this version's encode would have written."""
        parts = manifest.parts
        good = bool(SHA256.fullmatch(manifest.tiling)) and all(
            self.contents.is_entry(p, version, k, anchor) for k, p in enumerate(parts)
        )
        sums = (sum(p.size for p in parts), sum(p.elements for p in parts), sum(p.changed for p in parts))
        if not good or sums != (manifest.payload_bytes, manifest.elements, manifest.changed):
            raise CorruptInput(
                key,
                found="part keys, sizes or sums that do not follow from each other",
                expected=f"the manifest of version {version}",
                remedy="somebody wrote it who is no dcr encode: look at who may write to the store, abort this version",
            )

    def put_manifest(self, manifest: Manifest, anchor: bool = False) -> str:
        place = self._version_place(manifest.version, "manifest.json", anchor)
        lost = (
            "another publisher sealed this version, or this one did and its checkpoint was written again since with "
            "other words: dcr commit or dcr commit --abort, then encode again"
        )
        return self._documents.put(place, manifest, lost)

    def offer(self, version: int, number: int) -> Offer | None:
        """A publisher's offer to serve the parts of a version itself; numbered from 0 without gaps."""
        place = self._version_place(version, f"direct/{number:06d}.json")
        found = self._documents.read(Offer, place, SMALL, version=version)
        if found is not None:
            self._check_offer(found[0], place.key)
        return found[0] if found else None

    def put_offer(self, offer: Offer) -> int:
        """Put an offer under the first number that is free, which is returned."""
        number = 0
        while True:
            place = self._version_place(offer.version, f"direct/{number:06d}.json")
            if self._documents.put_first(Offer, place, offer, SMALL, version=offer.version) == offer:
                return number
            number += 1

    def offers(self, version: int) -> list[Offer]:
        """The offers of a version, the newest first."""
        found: list[Offer] = []
        while (offer := self.offer(version, len(found))) is not None:
            found.append(offer)
        return found[::-1]

    def _check_offer(self, offer: Offer, key: str) -> None:
        """Raise CorruptInput unless everything that is acted on can be meant."""
        good = bool(SHA256.fullmatch(offer.token)) and offer.store in ("also", "after", "never")
        named = all(_HOST.fullmatch(e.host) and SHA256.fullmatch(e.certificate) for e in offer.endpoints)
        numbers = all(0 < e.port < 1 << 16 for e in offer.endpoints)
        owned = bool(offer.endpoints) and all(0 <= owner < len(offer.endpoints) for owner in offer.owners)
        if not (good and named and numbers and owned):
            raise CorruptInput(
                key,
                found="hosts, ports, digests or owners that no publisher would name",
                expected=f"an offer of version {offer.version}",
                remedy="somebody wrote it who is no dcr encode: look at who may write to the store",
            )

    def has_offer(self, version: int) -> bool:
        """Whether any publisher ever offered to serve the parts of a version, whoever may read what it says."""
        return self.store.stat(self.version_key(version, "direct/000000.json")) is not None

    def is_stored(self, manifest: Manifest) -> bool:
        """Whether the parts of a sealed version are in the store: the last one, and the first, which a publisher that
        serves parts itself copies last. Both, as a try that died may have put some of the same."""
        ends = manifest.parts[:1] + manifest.parts[1:][-1:]
        return all(self.store.stat(entry.key) is not None for entry in ends)

    def has_copy(self, manifest: Manifest) -> bool:
        """The same, in one question where nobody ever offered to serve the version."""
        return not self.has_offer(manifest.version) or self.is_stored(manifest)

    def has_anchor(self, version: int) -> bool:
        """Whether a sealed anchor of this version is there."""
        return self.store.stat(self.version_key(version, "manifest.json", anchor=True)) is not None

    def put_hold(self, hold: Hold) -> None:
        """Tell the collector that a site works from a version on."""
        self._documents.put_first(Hold, self._hold_place(hold.site, uuid.uuid4().hex), hold)

    def hold(self, site: str, number: str) -> Hold | None:
        """A site's hold, named by its number."""
        found = self._documents.read(Hold, self._hold_place(site, number), SMALL, site=site)
        return None if found is None else found[0]

    def receipt(self, version: int, act: str, site: str) -> tuple[Receipt, str] | None:
        """A site's ``prepared`` or ``applied`` receipt, and its digest."""
        place = self._receipt_place(version, act, site)
        return self._documents.read(Receipt, place, SMALL, version=version, act=act, subject=site)

    def put_receipt(self, receipt: Receipt) -> Receipt:
        """Put a site's receipt. A re-run's differs in its timings only: the first one stands if it means the same."""
        version, act, site = receipt.version, receipt.act, receipt.subject
        place = self._receipt_place(version, act, site)
        standing = self._documents.put_first(Receipt, place, receipt, SMALL, version=version, act=act, subject=site)
        if (standing.manifest_sha256, standing.state) != (receipt.manifest_sha256, receipt.state):
            raise Conflict(
                place.key,
                found=f"a receipt for manifest {standing.manifest_sha256[:16]}",
                expected=f"one for {receipt.manifest_sha256[:16]}",
                remedy="two replicas report under one site name: give each its own",
            )
        return standing

    def decision(self, version: int) -> Decision | None:
        place = self._version_place(version, "decision.json")
        found = self._documents.read(Decision, place, SMALL, version=version)
        return found[0] if found else None

    def put_decision(self, decision: Decision) -> Decision:
        """Put the decision of a version; returns the one that stands, whoever put it."""
        place = self._version_place(decision.version, "decision.json")
        return self._documents.put_first(Decision, place, decision, SMALL, version=decision.version)

    # -- versions ---------------------------------------------------------------------------------------------

    def last_opened(self, hint: int = 0) -> int:
        """The newest version that was ever opened, found by probing, not listing.

        Versions are numbered without gaps and N + 1 is opened only once N is decided, so existence is monotone:
        double the step until a miss, then halve. ``hint`` is a version known to exist.
        """

        def exists(version: int) -> bool:
            return self.store.stat(self.version_key(version, "open.json")) is not None

        low, step = hint if hint and exists(hint) else 0, 1  # a hint from another store is no version of this one
        while exists(low + step):
            low, step = low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if exists(middle) else (low, middle)
        return low

    def last_committed(self, newest: int) -> tuple[Manifest, str]:
        """The newest committed version at or before ``newest``."""
        for version in range(newest, -1, -1):
            decision = self.decision(version)
            if decision is None and version < newest:  # else a forged open.json far ahead would be searched back from
                raise NotReady(
                    f"decision on version {version}",
                    found=f"none, though version {newest} is opened",
                    expected="a decision before the next version is opened",
                    remedy="if the store shows objects late, run this again; else look at who may write to it",
                )
            if decision is not None and decision.commit:
                return self.sealed(version)
        raise NotReady(
            f"policy {self.name!r}", found="no committed version", expected="version 0", remedy="run dcr init again"
        )

    def sealed(self, version: int) -> tuple[Manifest, str]:
        found = self.manifest(version)
        if found is None:
            decision = self.decision(version)
            if decision is not None and decision.commit:
                raise self.collected(version)
            raise NotReady(
                f"manifest of version {version}",
                found="none yet",
                expected="a sealed version",
                remedy="wait for the trainer's encode to finish, or run it again",
            )
        return found

    def collected(self, version: int) -> NotReady:
        """The error of who needs a version that was committed and is gone."""
        return NotReady(
            f"version {version} of policy {self.name!r}",
            found="a commit, and no manifest any more: dcr gc collected it",
            expected="a version that is still kept",
            remedy="a replica that far behind comes back by an anchor: dcr refit --catch-up, or dcr repair",
        )


def check_policy(found: str, expected: str, what: str) -> None:
    """Raise BaseMismatch unless an object is bound to this policy."""
    if found != expected:
        raise BaseMismatch(
            what,
            found=f"policy {found[:16]}",
            expected=f"policy {expected[:16]}",
            remedy="it belongs to another policy of the same name: check store and policy in the configuration",
        )
