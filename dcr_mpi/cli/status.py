"""What the store knows of a policy, as plain data."""

from __future__ import annotations

from typing import Any

from ..acts.replica import Replica
from ..catalog import Catalog
from ..config import Config
from ..errors import DcrError
from ..model import Decision, Manifest


def status(catalog: Catalog, config: Config, last: int) -> dict[str, Any]:
    """Policy, the last versions with their decisions and sites, and the replicas that this machine can see."""
    policy, digest = catalog.policy()
    newest = catalog.last_opened()
    committed, _ = catalog.last_committed(newest)
    return {
        "act": "status",
        "policy": policy.policy,
        "policy_sha256": digest,
        "tensors": len(policy.tensors),
        "store": catalog.store.url,
        "newest": newest,
        "committed": committed.version,
        "state": committed.state,
        "versions": _versions(catalog, range(max(0, newest - last + 1), newest + 1)),
        "replicas": {name: _replica(config, name) for name in sorted(config.sites)},
    }


def _versions(catalog: Catalog, shown: range) -> list[dict[str, Any]]:
    ahead: set[str] = set()  # sites that applied a later version: they need no earlier one
    return [_version(catalog, version, ahead) for version in reversed(shown)][::-1]


def _version(catalog: Catalog, version: int, ahead: set[str]) -> dict[str, Any]:
    decision = catalog.decision(version)
    found = catalog.manifest(version)
    row: dict[str, Any] = {"version": version, "state": _stage(found is not None, decision)}
    if found is not None:
        manifest = found[0]
        row |= {
            "base": manifest.base,
            "changed": manifest.changed,
            "elements": manifest.elements,
            "parts": len(manifest.parts),
            "payload_bytes": manifest.payload_bytes,
            "dense_bytes": manifest.dense_bytes,
            "sites": _sites(catalog, manifest, ahead, decision),
        }
    return row


def _stage(sealed: bool, decision: Decision | None) -> str:
    if decision is not None:
        if not decision.commit:
            return f"aborted: {decision.reason}"
        return "committed" if sealed else "committed, collected"
    return "sealed, undecided" if sealed else "open"


def _sites(catalog: Catalog, manifest: Manifest, ahead: set[str], decision: Decision | None) -> dict[str, str]:
    out = {}
    for site in sorted(catalog.contents.tiling(manifest.tiling).layouts):
        if decision is not None and not decision.commit:
            out[site] = "dropped"
        elif catalog.receipt(manifest.version, "applied", site) is not None:
            out[site] = "applied"
            ahead.add(site)
        elif site in ahead:
            out[site] = "passed"
        else:
            out[site] = "prepared" if catalog.receipt(manifest.version, "prepared", site) is not None else "waiting"
    return out


def _replica(config: Config, name: str) -> dict[str, Any]:
    try:
        record = Replica(config.sites[name].replica, name).record()
    except DcrError as error:
        return {"error": str(error)}
    if record is None:
        return {"directory": str(config.sites[name].replica), "version": None}
    return {
        "directory": str(config.sites[name].replica),
        "version": record.version,
        "applying": record.applying,
        "state": record.state,
    }
