"""Policy, layouts and tilings, from the store to every rank, checked on the way; once per job. And what each rank
keeps for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import CorruptInput
from ..hdf5 import Inventories
from ..kernels.api import MAX_BLOCK
from ..layout import Placement, check_tiling
from ..model import Layout, Policy, SiteLayout, Tiling
from .ports import Ports

T = TypeVar("T")


def load_policy(ports: Ports) -> Policy:
    """The policy. Every rank calls it.

    Raises
    ------
    NotReady
        There is none.
    """
    return _known(ports, Policy, "policy", lambda: ports.catalog.policy()[0])


def load_layout(ports: Ports, site: str) -> SiteLayout:
    """The layout that a site is registered with. Every rank calls it.

    Raises
    ------
    NotReady
        It is not registered.
    """
    return _known(ports, SiteLayout, f"layout of {site}", lambda: ports.catalog.layout(site))


def load_tiling(ports: Ports, digest: str, policy: Policy, policy_sha256: str, parts: int) -> Tiling:
    """The tiling named ``digest``, which must be of this policy and cut into ``parts`` parts. Every rank calls it.

    Raises
    ------
    GeometryError, CorruptInput
        It is of another policy or number of parts, or does not cover every tensor exactly once.
    """

    def fetch() -> Tiling:
        tiling = ports.catalog.contents.tiling(digest)
        check_tiling(tiling, policy.tensors, MAX_BLOCK)
        return tiling

    tiling = _known(ports, Tiling, f"tiling {digest}", fetch)
    if (tiling.policy_sha256, len(tiling.cuts)) != (policy_sha256, parts):
        raise CorruptInput(
            f"tiling {digest[:16]}",
            found=f"{len(tiling.cuts)} parts of policy {tiling.policy_sha256[:16]}",
            expected=f"{parts} of {policy_sha256[:16]}",
            remedy="abort the version (dcr commit --abort) and encode the next",
        )
    return tiling


def known_tiling(known: Mapping[str, Any], digest: str) -> Tiling | None:
    """A tiling that this job has loaded; None where it has not."""
    found: Tiling | None = known.get(f"tiling {digest}")
    return found


def placement(ports: Ports, whose: str, layout: Layout, policy: Policy) -> Placement:
    """Where tiles lie in a layout: this rank finds each of them once, as long as the layout stays what it is."""
    known = ports.known.get(f"placement {whose}")
    if not isinstance(known, Placement) or known.layout != layout:
        known = ports.known[f"placement {whose}"] = Placement(layout, policy.tensors)
    return known


def inventories(ports: Ports) -> Inventories:
    """The shards that this rank has listed."""
    found: Inventories = ports.known.setdefault("inventories", Inventories())
    return found


def _known(ports: Ports, cls: type[T], what: str, make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank, which keeps it: both are put once, and large where a model is.

    The ranks of a job have done the same since it began, so all of them have it, or none.
    """
    known = ports.known.get(what)
    if not isinstance(known, cls):
        known = ports.known[what] = ports.agree(cls, what, make)
    return known
