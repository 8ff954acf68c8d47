"""The tiling of a version, from the store to every rank, checked on the way."""

from __future__ import annotations

from ..errors import CorruptInput
from ..jsonable import dumps, loads
from ..kernels.api import MAX_BLOCK
from ..layout import check_tiling
from ..model import Policy, Tiling
from .ports import Ports


def load_tiling(ports: Ports, digest: str, policy: Policy, policy_sha256: str, parts: int) -> Tiling:
    """The tiling named ``digest``, which must be of this policy and cut into ``parts`` parts. Every rank calls it.

    Raises
    ------
    GeometryError, CorruptInput
        It is of another policy or number of parts, or does not cover every tensor exactly once.
    """

    def fetch() -> bytes:
        tiling = ports.catalog.tiling(digest)
        if (tiling.policy_sha256, len(tiling.cuts)) != (policy_sha256, parts):
            raise CorruptInput(
                f"tiling {digest[:16]}",
                found=f"{len(tiling.cuts)} parts of policy {tiling.policy_sha256[:16]}",
                expected=f"{parts} of {policy_sha256[:16]}",
                remedy="abort the version (dcr commit --abort) and encode the next",
            )
        check_tiling(tiling, policy.tensors, MAX_BLOCK)
        return dumps(tiling)

    return loads(Tiling, ports.once("tiling", fetch), "tiling")
