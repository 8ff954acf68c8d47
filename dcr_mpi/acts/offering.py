"""The publisher's side of the direct relay: offer a version's parts, serve them until sites have them, keep a copy.

The first part is the last to be copied, once all others are there: whether a sealed version is in the store whole is
one question to it. :meth:`dcr_mpi.catalog.Catalog.is_stored` asks it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..digest import sha256
from ..direct import Outlet
from ..direct.protocol import TOKEN_BYTES
from ..errors import CorruptInput, NotReady
from ..jsonable import dumps, loads
from ..model import Endpoint, Offer, PartEntry
from ..waiting import watch
from .ports import Ports

_UPLOADS = 2


@dataclass(frozen=True)
class Served:
    """What became of an offer: ``missing`` sites had not prepared when serving ended, ``sent`` bytes of parts went to
    sites (all ranks), ``stored``: the parts are in the store."""

    missing: tuple[str, ...]
    sent: int
    stored: bool


def offer(ports: Ports, outlet: Outlet, policy_sha256: str, version: int, owners: Sequence[int]) -> None:
    """Begin to serve, and say so in the store. Every rank calls it; parts are put on the outlet as they are built.

    ``owners``: the rank that builds each part.

    Raises
    ------
    UsageError
        A rank cannot listen where it is told to.
    """
    comm = ports.comm
    token = ports.once("token of the direct relay", lambda: secrets.token_bytes(TOKEN_BYTES))
    endpoint = outlet.begin(version, token, [part for part, owner in enumerate(owners) if owner == comm.rank])
    raw = comm.allgather(dumps(endpoint), "addresses of the direct relay")

    def put() -> bytes:
        endpoints = tuple(loads(Endpoint, one, "address of a rank") for one in raw)
        offered = Offer(policy_sha256, version, token.hex(), endpoints, tuple(owners), outlet.store)
        number = ports.catalog.put_offer(offered)
        return dumps(number)

    number = int(ports.once("offer of the direct relay", put))
    ports.events.emit("offered", version=version, number=number, host=endpoint.host, port=endpoint.port)


def serve(
    ports: Ports, version: int, sites: Sequence[str], wait_s: float, poll_s: tuple[float, float]
) -> Served | None:
    """Go on serving a sealed version until all ``sites`` that it is cut for have prepared it, it is decided, or
    ``wait_s`` is over; then copy it to the store where that is to be. Every rank calls it; None if nothing is served.

    Raises
    ------
    NotReady
        Some sites have not prepared, and nobody will serve them: no copy is kept.
    """
    outlet = ports.outlet
    if outlet is None or outlet.version != version:
        return None
    with ports.events.stage("serve"):
        raw = ports.once("sites that have prepared", lambda: dumps(_wait(ports, version, sites, wait_s, poll_s)))
    missing, decided = json.loads(raw)
    served = finish(ports, missing)
    if missing and not decided and not served.stored:
        raise NotReady(
            f"version {version} at {', '.join(missing)}",
            found=f"not prepared after {wait_s:g} s",
            expected="a prepared receipt from every site",
            remedy="its parts are nowhere now (direct.store: never): run this again, which serves the same parts, and "
            "dcr refit there meanwhile; direct.serve_s is how long that may take",
        )
    return served


def finish(ports: Ports, missing: Sequence[str] = ()) -> Served:
    """End serving; first copy the parts to the store where that is due. Every rank calls it.

    Raises
    ------
    Conflict
        A part's key, which is made of its content's digest, holds other content.
    """
    outlet = ports.outlet
    assert outlet is not None and outlet.version is not None
    version, entries = outlet.version, outlet.shelf.entries
    aborted = ports.once("decision", lambda: dumps(_aborted(ports, version))) == b"true"
    stored = outlet.store != "never" and not (outlet.store == "after" and aborted)
    if outlet.store == "after" and stored:
        with ports.events.stage("copy", sum(e.size for e in entries)):
            _copy(ports, outlet, [e for e in entries if e.index])
            ports.comm.barrier("copies of all parts but the first")
            _copy(ports, outlet, [e for e in entries if not e.index])
    ports.comm.barrier("end of the direct relay")
    sent = sum(json.loads(one) for one in ports.comm.allgather(dumps(outlet.sent), "bytes served"))
    ports.events.note(version=version, served=outlet.sent)
    outlet.close()
    return Served(tuple(missing), sent, stored)


def _copy(ports: Ports, outlet: Outlet, entries: Sequence[PartEntry]) -> None:
    orderly, pool = False, ThreadPoolExecutor(_UPLOADS, "copy")
    try:
        for done in [pool.submit(_copy_one, ports, outlet, entry) for entry in entries]:
            ports.comm.heed()
            done.result()
        orderly = True
    finally:
        pool.shutdown(wait=orderly, cancel_futures=True)


def _copy_one(ports: Ports, outlet: Outlet, entry: PartEntry) -> None:
    data = bytes(outlet.shelf.read(entry.index, 0, entry.size))
    if sha256(data) != entry.sha256:
        raise CorruptInput(
            f"part {entry.index}",
            found="other bytes than were built, in memory or in direct.spool",
            expected=f"sha256 {entry.sha256[:16]}",
            remedy="look at that host and file system: this part was not put; sites that took it hold the right one",
        )
    ports.catalog.contents.put_part(entry, data)


def _wait(
    ports: Ports, version: int, sites: Sequence[str], wait_s: float, poll_s: tuple[float, float]
) -> tuple[Sequence[str], bool]:
    """The sites that have not prepared, once there is none, a decision, or no more time; and whether it is decided."""
    catalog, missing, decided = ports.catalog, sites, False

    def look() -> bool | None:
        nonlocal missing, decided
        missing = [site for site in missing if catalog.receipt(version, "prepared", site) is None]
        decided = bool(missing) and catalog.decision(version) is not None
        if decided or not missing:
            return True
        ports.comm.heed()
        return None

    watch(look, wait_s, poll_s)
    return missing, decided


def _aborted(ports: Ports, version: int) -> bool:
    decision = ports.catalog.decision(version)
    return decision is not None and not decision.commit
