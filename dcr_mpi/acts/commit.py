"""commit: the one put-once decision on a version, for everybody."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..catalog import Catalog, check_policy
from ..errors import Conflict, NotReady
from ..model import Decision, Receipt
from ..waiting import wait_for
from .tiling import known_tiling


def decide(
    catalog: Catalog,
    version: int | None = None,
    *,
    sites: Sequence[str] | None = None,
    wait_s: float = 600.0,
    on_timeout: str = "wait",
    poll_s: tuple[float, float] = (0.05, 2.0),
    known: Mapping[str, Any] = {},
) -> Decision:
    """Commit a version once every site has prepared it; returns the decision that stands.

    Parameters
    ----------
    version : int, optional
        The newest opened one where None.
    sites : sequence of str, optional
        Whose prepared receipts are needed; all that the version is cut for where None.
    on_timeout : "wait" or "abort"
        After ``wait_s``: leave the version undecided (NotReady, run again later), or decide to abort it.
    known : mapping
        Of :class:`Ports`, in a job that has read the tiling already.

    Raises
    ------
    NotReady
        Not sealed, or not prepared everywhere, in time.
    Conflict
        A site's receipt is for another manifest.
    """
    version = catalog.last_opened() if version is None else version
    standing = catalog.decision(version)
    if standing is not None:
        return standing
    begun = time.monotonic()
    try:
        manifest, digest = wait_for(f"manifest of version {version}", lambda: catalog.manifest(version), wait_s, poll_s)
        if sites is None:
            tiling = known_tiling(known, manifest.tiling) or catalog.contents.tiling(manifest.tiling)
            sites = list(tiling.layouts)
        prepared = {}
        for site in sorted(sites):
            left = max(0.0, wait_s - (time.monotonic() - begun))
            what = f"prepared receipt of site {site!r} for version {version}"
            seen = wait_for(what, partial(_look, catalog, version, site), left, poll_s)
            if seen.decision is not None:
                return seen.decision
            receipt = seen.receipt
            assert receipt is not None
            if receipt.manifest_sha256 != digest:
                raise Conflict(
                    f"prepared receipt of {site!r}",
                    found=f"manifest {receipt.manifest_sha256[:16]}",
                    expected=digest[:16],
                    remedy="abort this version (dcr commit --abort) and encode the next",
                )
            check_policy(receipt.policy_sha256, manifest.policy_sha256, f"prepared receipt of {site!r}")
            prepared[site] = seen.digest
    except NotReady as error:
        if on_timeout != "abort":
            raise
        return abort(catalog, version, f"{error.what}: none within {wait_s:g} s")
    return catalog.put_decision(Decision(manifest.policy_sha256, version, True, digest, prepared))


class _Seen(NamedTuple):
    """What a look for a site's receipt found: the receipt and its digest, or a decision that somebody put meanwhile."""

    receipt: Receipt | None = None
    digest: str = ""
    decision: Decision | None = None


def _look(catalog: Catalog, version: int, site: str) -> _Seen | None:
    found = catalog.receipt(version, "prepared", site)
    if found is not None:
        return _Seen(*found)
    decision = catalog.decision(version)
    return None if decision is None else _Seen(decision=decision)


def abort(catalog: Catalog, version: int | None = None, reason: str = "asked for") -> Decision:
    """Decide to abort a version, sealed or not; returns the decision that stands, which may be a commit.

    Raises
    ------
    NotReady
        Nothing is opened that could be aborted.
    """
    version = catalog.last_opened() if version is None else version
    if version == 0:
        raise Conflict(
            "version 0",
            found="an abort of it",
            expected="a later version: all others are made from this one",
            remedy="finish dcr init --checkpoint, or Publisher.start, with what it was begun with",
        )
    if catalog.opened(version) is None:
        raise NotReady(
            f"version {version}", found="not opened", expected="a version under way", remedy="look at dcr status"
        )
    standing = catalog.decision(version)
    if standing is not None:
        return standing
    _, policy_sha = catalog.policy()
    found = catalog.manifest(version)
    return catalog.put_decision(Decision(policy_sha, version, False, found[1] if found else "", {}, reason))
