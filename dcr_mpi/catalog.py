"""The store's objects by meaning: which key holds what, and typed put-once and read for each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

import zstandard

from .digest import sha256
from .errors import BaseMismatch, Conflict, CorruptInput, NotReady, UsageError
from .jsonable import MAX_JSON, dumps, loads
from .model import Decision, Manifest, Open, PartEntry, Policy, Receipt, SiteLayout, Tiling
from .store.api import Store

T = TypeVar("T")
_MAX_PART = 8 << 30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(kind: str, name: str) -> str:
    """A policy's or site's name, fit to be part of a key; raises UsageError otherwise."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{kind} name", found=repr(name[:80]), expected="1 to 64 of [A-Za-z0-9._-], a letter or digit first"
        )
    return name


class Catalog:
    """One policy's objects in a store. Cheap to make; safe from several threads."""

    def __init__(self, store: Store, policy: str) -> None:
        self.store, self.name = store, check_name("policy", policy)

    # -- keys -------------------------------------------------------------------------------------------------

    def policy_key(self) -> str:
        return f"{self.name}/policy.json"

    def layout_key(self, site: str) -> str:
        return f"{self.name}/layouts/{check_name('site', site)}.json"

    def version_key(self, version: int, leaf: str, anchor: bool = False) -> str:
        return f"{self.name}/{'anchors' if anchor else 'versions'}/{version:06d}/{leaf}"

    def part_key(self, version: int, index: int, digest: str, anchor: bool = False) -> str:
        """Named by content: a retry meets its own bytes, and no publisher can overwrite another's."""
        return self.version_key(version, f"parts/{index:06d}-{digest[:32]}", anchor)

    # -- typed objects ----------------------------------------------------------------------------------------

    def policy(self, known_by: str = "") -> tuple[Policy, str]:
        """The policy and the SHA-256 of its text, which everything else is bound to.

        ``known_by``: who has met this policy before, if anybody has; a store without it is then no first start.
        """
        remedy = (
            f"check store.url: {known_by}; do not run dcr init" if known_by else "run dcr init at the trainer first"
        )
        raw = self._need(self.policy_key(), remedy)
        return loads(Policy, raw, self.policy_key()), sha256(raw)

    def put_policy(self, policy: Policy) -> str:
        return self._put(self.policy_key(), dumps(policy), "this policy exists with other tensors or another layout")

    def layout(self, site: str) -> SiteLayout:
        key = self.layout_key(site)
        return loads(SiteLayout, self._need(key, f"run dcr init --site {site} at that site first"), key)

    def put_layout(self, layout: SiteLayout) -> str:
        key = self.layout_key(layout.site)
        return self._put(
            key, dumps(layout), "this site is registered with another layout: register a new site name for it"
        )

    def tiling(self, digest: str) -> Tiling:
        key = f"{self.name}/tilings/{digest}.json.zst"
        packed = self._need(key, "the trainer's encode puts it")
        size = (
            zstandard.get_frame_parameters(packed).content_size if packed[:4] == b"\x28\xb5\x2f\xfd" else MAX_JSON + 1
        )
        if size > MAX_JSON:
            raise CorruptInput(key, found=f"a frame of {size} bytes", expected=f"at most {MAX_JSON}")
        try:
            raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size)
        except zstandard.ZstdError as error:
            raise CorruptInput(key, found=str(error), expected="one zstd frame") from None
        if sha256(raw) != digest:
            raise CorruptInput(key, found=f"content with digest {sha256(raw)}", expected="the digest in its name")
        return loads(Tiling, raw, key)

    def put_tiling(self, tiling: Tiling) -> str:
        """Store a tiling under the digest of its text, which is returned."""
        raw = dumps(tiling)
        digest = sha256(raw)
        key = f"{self.name}/tilings/{digest}.json.zst"
        # Another zstd may have packed the same text to other bytes before: then the text is what counts.
        if not self.store.put_once(key, zstandard.ZstdCompressor(level=3).compress(raw)):
            self.tiling(digest)
        return digest

    def opened(self, version: int, anchor: bool = False) -> Open | None:
        return self._maybe(Open, self.version_key(version, "open.json", anchor))

    def put_open(self, opened: Open, anchor: bool = False) -> Open:
        """Announce a version; returns the announcement that stands (another publisher's, where it came first)."""
        key = self.version_key(opened.version, "open.json", anchor)
        if self.store.put_once(key, dumps(opened)):
            return opened
        return loads(Open, self._need(key, ""), key)

    def manifest(self, version: int, anchor: bool = False) -> tuple[Manifest, str] | None:
        key = self.version_key(version, "manifest.json", anchor)
        raw = self.store.get(key, limit=MAX_JSON)
        if raw is None:
            return None
        manifest = loads(Manifest, raw, key)
        self._check_manifest(manifest, version, anchor, key)
        return manifest, sha256(raw)

    def _check_manifest(self, manifest: Manifest, version: int, anchor: bool, key: str) -> None:
        """Every number that is acted on must be what this version's encode would have written."""
        parts = manifest.parts
        good = manifest.version == version and all(
            p.index == k and p.key == self.part_key(version, k, p.sha256, anchor) and 0 < p.size <= _MAX_PART
            for k, p in enumerate(parts)
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
        key = self.version_key(manifest.version, "manifest.json", anchor)
        return self._put(
            key, dumps(manifest), "another publisher sealed this version with other content: its manifest stands"
        )

    def receipt(self, version: int, act: str, site: str) -> tuple[Receipt, str] | None:
        """A site's ``prepared`` or ``applied`` receipt, and its digest."""
        key = self.version_key(version, f"{act}/{check_name('site', site)}.json")
        raw = self.store.get(key, limit=MAX_JSON)
        return None if raw is None else (loads(Receipt, raw, key), sha256(raw))

    def put_receipt(self, receipt: Receipt) -> Receipt:
        """Put a site's receipt. A re-run's differs in its timings only: the first one stands if it means the same."""
        key = self.version_key(receipt.version, f"{receipt.act}/{check_name('site', receipt.subject)}.json")
        if self.store.put_once(key, dumps(receipt)):
            return receipt
        standing = loads(Receipt, self._need(key, ""), key)
        if (standing.manifest_sha256, standing.state) != (receipt.manifest_sha256, receipt.state):
            raise Conflict(
                key,
                found=f"a receipt for manifest {standing.manifest_sha256[:16]}",
                expected=f"one for {receipt.manifest_sha256[:16]}",
                remedy="two replicas report under one site name: give each its own",
            )
        return standing

    def decision(self, version: int) -> Decision | None:
        return self._maybe(Decision, self.version_key(version, "decision.json"))

    def put_decision(self, decision: Decision) -> Decision:
        """Put the decision of a version; returns the one that stands, whoever put it."""
        key = self.version_key(decision.version, "decision.json")
        if self.store.put_once(key, dumps(decision)):
            return decision
        return loads(Decision, self._need(key, ""), key)

    def part(self, entry: PartEntry) -> bytes:
        """A sealed part's bytes, checked; fetched once more where they are not what the manifest says.

        Raises
        ------
        NotReady, CorruptInput
            The part is missing, or wrong twice; the message names it.
        """
        for attempt in (1, 2):
            data = self.store.get(entry.key, limit=entry.size)
            if data is None:
                raise NotReady(
                    f"part {entry.index} ({entry.key})",
                    found="no such object",
                    expected=f"{entry.size} bytes",
                    remedy="the manifest names it: look whether it was deleted, or whether the store shows it late",
                )
            if len(data) == entry.size and sha256(data) == entry.sha256:
                return data
            if attempt == 2:
                raise CorruptInput(
                    f"part {entry.index} ({entry.key})",
                    found=f"{len(data)} bytes, sha256 {sha256(data)[:16]}",
                    expected=f"{entry.size} bytes, {entry.sha256[:16]}",
                    remedy="the object was changed or cut in the store: abort this version and encode the next",
                )
        raise AssertionError("unreachable")

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
            if decision is not None and decision.commit:
                return self.sealed(version)
        raise NotReady(
            f"policy {self.name!r}", found="no committed version", expected="version 0", remedy="run dcr init again"
        )

    def sealed(self, version: int) -> tuple[Manifest, str]:
        found = self.manifest(version)
        if found is None:
            raise NotReady(
                f"manifest of version {version}",
                found="none yet",
                expected="a sealed version",
                remedy="wait for the trainer's encode to finish, or run it again",
            )
        return found

    def wait(self, what: str, look: Callable[[], T | None], wait_s: float, poll_s: tuple[float, float]) -> T:
        """Look until there is something, with a growing pause; raises NotReady once ``wait_s`` is over."""
        give_up, pause = time.monotonic() + wait_s, poll_s[0]
        while (found := look()) is None:
            left = give_up - time.monotonic()
            if left <= 0:
                raise NotReady(
                    what,
                    found=f"none after {wait_s:g} s",
                    expected="it in the store",
                    remedy="look whether the job that makes it runs, then run this again",
                )
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, poll_s[1])
        return found

    # -- helpers ----------------------------------------------------------------------------------------------

    def _need(self, key: str, remedy: str) -> bytes:
        raw = self.store.get(key, limit=MAX_JSON)
        if raw is None:
            raise NotReady(f"{key} in {self.store.url}", found="no such object", expected="it", remedy=remedy)
        return raw

    def _maybe(self, cls: type[T], key: str) -> T | None:
        raw = self.store.get(key, limit=MAX_JSON)
        return None if raw is None else loads(cls, raw, key)

    def _put(self, key: str, data: bytes, lost: str) -> str:
        if not self.store.put_once(key, data):
            raise Conflict(
                f"{key} in {self.store.url}",
                found="other content under it",
                expected="nothing, or the same",
                remedy=lost,
            )
        return sha256(data)


def check_policy(found: str, expected: str, what: str) -> None:
    """Raise BaseMismatch unless an object is bound to this policy."""
    if found != expected:
        raise BaseMismatch(
            what,
            found=f"policy {found[:16]}",
            expected=f"policy {expected[:16]}",
            remedy="it belongs to another policy of the same name: check store and policy in the configuration",
        )
