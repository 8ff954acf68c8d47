"""What every act is given: the outside world, as arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..catalog import Catalog
from ..comm import Comm
from ..direct import Inlet, Outlet
from ..errors import Overtaken
from ..events import Events
from ..jsonable import dumps, loads
from ..kernels.api import Kernels
from ..model import Manifest, Receipt

T = TypeVar("T")
_HERE = b"\0"  # no JSON begins with it


@dataclass(frozen=True)
class Ports:
    """Store (by meaning), ranks, kernels and the log. Tests pass their own; acts open nothing themselves.

    ``outlet`` and ``inlet`` are the two ends of the direct relay; None where all parts go by the store.
    """

    catalog: Catalog
    comm: Comm
    kernels: Kernels
    events: Events
    known: dict[str, Any] = field(default_factory=dict)  # what every rank of this job has been given already
    outlet: Outlet | None = None
    inlet: Inlet | None = None

    def once(self, what: str, make: Callable[[], bytes]) -> bytes:
        """Bytes that rank 0 makes (by asking the store, say) and every rank gets; or Overtaken, on every rank."""

        def act() -> bytes:
            try:
                return _HERE + make()
            except Overtaken as error:
                return _packed(error)

        raw = self.comm.broadcast(act() if self.comm.rank == 0 else None, what)
        if not raw.startswith(_HERE):
            raise _unpacked(raw)
        return raw[len(_HERE) :]

    def agree(self, cls: type[T], what: str, make: Callable[[], T]) -> T:
        """A dataclass that rank 0 makes, on every rank; or Overtaken, on every rank."""
        made: list[T] = []

        def act() -> bytes:
            made.append(make())
            return dumps(made[0]) if self.comm.size > 1 else b""

        raw = self.once(what, act)
        return made[0] if made else loads(cls, raw, what)

    def keep_in_step(self, overtaken: Overtaken | None, what: str) -> None:
        """Raise, on every rank, what one of them found overtaken. Every rank calls it, with what it found itself."""
        told = self.comm.allgather(_packed(overtaken) if overtaken is not None else b"", what)
        if said := next(filter(None, told), b""):
            raise _unpacked(said)

    def receipt(
        self,
        act: str,
        subject: str,
        manifest: Manifest,
        manifest_sha256: str,
        *,
        sizes: Mapping[str, int] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """The receipt of an act on a version, with this rank's stage times."""
        return Receipt(
            act=act,
            subject=subject,
            policy_sha256=manifest.policy_sha256,
            version=manifest.version,
            base=manifest.base,
            manifest_sha256=manifest_sha256,
            state=manifest.state,
            ranks=self.comm.size,
            device=self.kernels.device,
            seconds=self.events.seconds(),
            bytes={**self.events.bytes(), **(sizes or {})},
            detail=dict(detail or {}),
        )


def _packed(error: Overtaken) -> bytes:
    return dumps([error.what, error.found, error.expected, error.remedy])


def _unpacked(raw: bytes) -> Overtaken:
    what, found, expected, remedy = json.loads(raw)
    return Overtaken(what, found=found, expected=expected, remedy=remedy)
