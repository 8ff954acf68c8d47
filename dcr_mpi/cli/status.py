"""What the store knows of a policy, as plain data."""

from __future__ import annotations

from typing import Any

from ..acts.replica import Replica
from ..catalog import Catalog
from ..config import Config
from ..errors import DcrError
from ..model import Manifest


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
        "versions": [_version(catalog, v) for v in range(max(0, newest - last + 1), newest + 1)],
        "replicas": {name: _replica(config, name) for name in sorted(config.sites)},
    }


def _version(catalog: Catalog, version: int) -> dict[str, Any]:
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
            "sites": _sites(catalog, manifest),
        }
    return row


def _stage(sealed: bool, decision: Any) -> str:
    if decision is not None:
        return "committed" if decision.commit else f"aborted: {decision.reason}"
    return "sealed, undecided" if sealed else "open"


def _sites(catalog: Catalog, manifest: Manifest) -> dict[str, str]:
    out = {}
    for site in sorted(catalog.tiling(manifest.tiling).layouts):
        done = [act for act in ("applied", "prepared") if catalog.receipt(manifest.version, act, site) is not None]
        out[site] = done[0] if done else "waiting"
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
