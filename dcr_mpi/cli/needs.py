"""``--needs``: a receipt of an earlier act, held against the store before this one begins.

A scheduler's word that a job succeeded is hearsay, and a receipt that lies about is a file that anybody may have
written. What counts is the store: the version that a receipt names must be sealed there with the digest and the state
that it tells, and what the act should have put there must be there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..catalog import Catalog, check_policy
from ..errors import Conflict, CorruptInput, NotReady, from_os_error
from ..jsonable import loads

_SITE_ACTS = ("prepared", "applied")  # what a site puts a receipt of into the store
_AGAIN = "remove it, and run the command that writes it again"


def check_needed(catalog: Catalog, path: Path) -> None:
    """Check a receipt that ``--receipt`` wrote. Rank 0's work; puts nothing.

    Raises
    ------
    NotReady
        No such file, or the store does not have (yet) what it tells of.
    CorruptInput
        No receipt of a version.
    BaseMismatch
        It is of another policy.
    Conflict
        The store has another version, receipt or decision under this number, or an abort.
    """
    what = f"receipt {path}"
    told = _read(path, what)
    number: int = told["version"]
    if "policy_sha256" in told:
        check_policy(told["policy_sha256"], catalog.policy()[1], what)
    decision = catalog.decision(number)
    if decision is not None and not decision.commit:
        raise Conflict(
            what,
            found=f"version {number}, which was aborted ({decision.reason})",
            expected="a version that stands",
            remedy="encode again: the next version is made from the last committed one",
        )
    if "commit" in told and decision is None:
        raise _missing(what, f"a commit of version {number}", "dcr commit")
    manifest, digest = catalog.sealed(number)
    _same(what, number, "manifest", told.get("manifest_sha256", digest), digest)
    _same(what, number, "state", told.get("state", manifest.state), manifest.state)
    if told["act"] in _SITE_ACTS:
        found = catalog.receipt(number, told["act"], str(told.get("subject")))
        if found is None:
            act = f"{told['act']} by site {told.get('subject')!r}"
            raise _missing(what, f"version {number} {act}", "the command that wrote it")
        _same(what, number, f"manifest in the {told['act']} receipt", digest, found[0].manifest_sha256)


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        remedy = "run the command that writes it (--receipt) first; a shared file system may show it late"
        raise NotReady(what, found="no such file", expected="it", remedy=remedy) from None
    except OSError as error:
        raise from_os_error(error, what) from error
    told: dict[str, Any] = loads(dict[str, Any], raw, what)
    if not isinstance(told.get("act"), str) or type(told.get("version")) is not int or told["version"] < 0:
        raise CorruptInput(
            what,
            found=f"act {told.get('act')!r}, version {told.get('version')!r}",
            expected="what --receipt of an act on a version wrote",
            remedy=_AGAIN,
        )
    if not {"state", "manifest_sha256"} & told.keys():
        raise CorruptInput(what, found="no digest", expected="a state or a manifest's digest", remedy=_AGAIN)
    return told


def _same(what: str, number: int, name: str, found: object, standing: str) -> None:
    if found != standing:
        raise Conflict(
            what,
            found=f"{name} {str(found)[:16]} of version {number}",
            expected=f"{standing[:16]}, which the store has",
            remedy=f"it is of another run or another store: {_AGAIN}",
        )


def _missing(what: str, told: str, command: str) -> NotReady:
    return NotReady(
        what, found=f"{told}, of which the store knows nothing", expected="it there",
        remedy=f"check store.url; else remove the receipt and run {command} again",
    )  # fmt: skip
