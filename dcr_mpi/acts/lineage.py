"""What a program's versions are made from: the last committed one in a buffer, and the one under way in the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..digest import state_digest
from ..errors import BaseMismatch, Conflict
from ..jsonable import dumps, loads
from ..model import Manifest, Open, Policy
from .encode import make_version
from .init import version_zero
from .kept import Kept, Slot
from .memory import Arrays
from .next_version import EncodeJob, Next, last_decided, open_version
from .ports import Ports
from .publish import CodecSettings
from .state import checkpoint_lanes


@dataclass(frozen=True)
class Where:
    """Where a policy is: its last committed version, and the ``next`` to be decided, with its state if it is sealed."""

    version: int
    state: str
    next: int
    sealed: str | None


class Lineage:
    """Every rank of a program has one, and calls its methods together with the others.

    ``base`` is a buffer and the manifest of what it holds, None before :meth:`begin` or :meth:`go_on`; ``sealing`` is
    in the other buffer and perhaps sealed, ``pending`` there too, sealed and undecided.
    """

    def __init__(
        self, ports: Ports, policy: Policy, policy_sha256: str, kept: Kept, codec: CodecSettings, sites: Sequence[str]
    ) -> None:
        self.ports, self.policy, self.policy_sha256, self.kept = ports, policy, policy_sha256, kept
        self._codec, self._sites = codec, sites
        self.base: tuple[int, Manifest] | None = None
        self.sealing: Manifest | None = None
        self.pending: Manifest | None = None

    def is_born(self) -> bool:
        """Rank 0: whether version 0 is committed. Puts the policy, which must be the one that stands."""
        self.ports.catalog.put_policy(self.policy)
        return self.ports.catalog.decision(0) is not None

    def begin(self, given: Arrays, anchor: bool) -> int:
        """Version 0; of what is kept, where an earlier start got as far as its manifest."""
        begun = self.ports.once("version 0 under way", lambda: self._begun().encode()).decode()
        slot = self._find_kept(0, begun) if begun else None
        words = given if slot is None else self.kept.words(slot)

        def keep(manifest: Manifest) -> None:
            if slot is None:
                self.kept.fill(0, given)
                self.record(0, manifest)

        settings = self._codec
        manifest = version_zero(self.ports, self.policy, self.policy_sha256, words, settings, anchor, keep)
        self.base = (slot or 0, manifest)
        return 0

    def _begun(self) -> str:
        """Rank 0: the state of version 0 as it is sealed, "" where it is not."""
        found = self.ports.catalog.manifest(0)
        return found[0].state if found is not None else ""

    def _find_kept(self, version: int, state: str) -> int | None:
        """The buffer that holds a version on every rank, by its record and by its words."""
        slot = self.kept.find(self.policy_sha256, version, state)
        slots = {int(raw) for raw in self.ports.comm.allgather(b"%d" % (-1 if slot is None else slot), "what is kept")}
        return slot if len(slots) == 1 and slot is not None and self._state(self.kept.words(slot)) == state else None

    def recall(self) -> None:
        """After an error while a version was sealed: find out whether it was."""
        manifest = self.sealing
        assert manifest is not None

        def look() -> bytes:
            found = self.ports.catalog.manifest(manifest.version)
            return dumps(found is not None and found[0] == manifest)

        if self.ports.once("version that was being sealed", look) == b"true":
            self.pending = manifest
        self.sealing = None

    def _serve_again(self, slot: int, pending: Manifest) -> None:
        """Sites may still need the parts of a version under way, which nobody serves any more."""
        assert self.base is not None
        raw = self.ports.once("opened version", lambda: dumps(self.ports.catalog.opened(pending.version)))
        words, (at, before) = self.kept.words(slot), self.base
        settings, base = self._codec, self.kept.words(at)
        make_version(
            self.ports, self.policy, loads(Open, raw, "open.json"), before, base, words, settings, pending.step
        )

    def go_on(self, given: Arrays) -> int:
        """Find the baseline of an existing policy."""
        where = self.ports.agree(Where, "last version", self._where)
        mine: str | None = None  # the state of what is given, computed where it is asked for

        def find(version: int, state: str) -> int | None:
            """The buffer that holds a version on every rank; filled from what is given, where that is it."""
            nonlocal mine
            if (slot := self._find_kept(version, state)) is not None:
                return slot
            mine = self._state(given) if mine is None else mine
            if mine != state:
                return None
            slot = 1 - self.base[0] if self.base is not None else 0
            self.kept.fill(slot, given)
            self.kept.record(slot, Slot(self.policy_sha256, version, state))
            return slot

        slot = find(where.version, where.state)
        if slot is None:
            raise BaseMismatch(
                f"arrays of policy {self.policy.policy!r}",
                found=f"state {(mine or '')[:16]}",
                expected=f"{where.state[:16]}, that of version {where.version}, the last committed one",
                remedy="load the weights of that version, or keep the baseline (keep=FOLDER), or begin a new policy",
            )
        self.base = (slot, self._manifest(where.version))
        if where.sealed is not None:
            other = find(where.next, where.sealed)
            if other is None or other == slot:
                raise Conflict(
                    f"version {where.next}",
                    found="sealed and undecided, with words that this program does not have",
                    expected="a decision on it",
                    remedy="dcr commit once the sites have prepared it, or dcr commit --abort; then start again",
                )
            self.pending = self._manifest(where.next)
            if self.ports.outlet is not None:
                self._serve_again(other, self.pending)
        return where.version

    def _where(self) -> Where:
        catalog = self.ports.catalog
        decided = last_decided(catalog, self.base[1].version if self.base is not None else 0)
        last, _ = catalog.last_committed(decided)
        sealed = catalog.manifest(decided + 1)
        return Where(last.version, last.state, decided + 1, sealed[0].state if sealed is not None else None)

    def announce(self, before: Manifest) -> Open:
        """Rank 0: announce the next version, made from ``before``."""
        catalog = self.ports.catalog
        where = self._where()
        if (where.version, where.state) != (before.version, before.state) or where.sealed is not None:
            raise Conflict(
                f"version {where.next if where.sealed is not None else where.version}",
                found="one that another publisher made",
                expected=f"version {before.version} to be the last, and decided",
                remedy="one program publishes a policy at a time: stop the other, and start this again",
            )
        job = EncodeJob(Path(), None, Path(), self._sites, self._codec)
        following = Next(self.policy_sha256, where.next, before, "", True)
        return open_version(catalog, job, self.policy, following, self.ports.known)

    def _state(self, arrays: Arrays) -> str:
        lanes = checkpoint_lanes(self.ports, arrays, self.policy.tensors, "state")
        return state_digest(self.policy.tensors, lanes)

    def _manifest(self, version: int) -> Manifest:
        return self.ports.agree(
            Manifest, f"manifest of version {version}", lambda: self.ports.catalog.sealed(version)[0]
        )

    def record(self, slot: int, manifest: Manifest) -> None:
        self.kept.record(slot, Slot(self.policy_sha256, manifest.version, manifest.state))
        self.ports.comm.barrier("baseline kept")
