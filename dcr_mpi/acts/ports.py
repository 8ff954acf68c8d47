"""What every act is given: the outside world, as arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..catalog import Catalog
from ..comm import Comm
from ..direct import Inlet, Outlet
from ..events import Events
from ..kernels.api import Kernels
from ..model import Manifest, Receipt


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
        """Bytes that rank 0 makes (by asking the store, say) and every rank gets."""
        return self.comm.broadcast(make() if self.comm.rank == 0 else None, what)

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
