"""This rank's end of the direct relay, tried for real: it listens as configured, and calls itself as a site would."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from ...config import Config
from ...direct import Inlet, Reach
from ...model import Offer
from ..jobs import outlet_of
from .finding import Finding, ok, warn

_PATIENCE_S = 5.0


def direct(config: Config) -> Iterator[Finding]:
    """Nothing where parts go by the store, or nobody publishes with this configuration.

    Raises what :meth:`dcr_mpi.direct.Outlet.begin` raises.
    """
    if config.relay.transport != "direct" or not config.trainer.sites:
        return
    outlet, token = outlet_of(config), secrets.token_bytes(32)
    inlet = Inlet(Reach(_PATIENCE_S, _PATIENCE_S, _PATIENCE_S, _PATIENCE_S))
    try:
        endpoint = outlet.begin(0, token, ())
        where = f"{endpoint.host}, port {endpoint.port}"
        if inlet.answers(Offer("", 0, token.hex(), (endpoint,), (), outlet.store)):
            yield ok("direct relay", f"serves at {where}")
        else:
            yield warn("direct relay", f"{where}, where this host does not reach itself", "a place that sites reach",
                       "try it from a site; else name the host with direct.advertise")  # fmt: skip
    finally:
        inlet.close()
        outlet.close()
