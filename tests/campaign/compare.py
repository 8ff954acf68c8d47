"""What a world holds, so that two of them can be compared: every file byte for byte, but for what tells of time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dcr_mpi.journal import Binding, Patch, describe, read_journal
from dcr_mpi.jsonable import dumps, loads

_RECEIPT = re.compile(r".*/(prepared|applied)/[^/]+\.json|.*/\.dcr/v[0-9]+/e/prepared\.json")
_EPOCH = re.compile(r"(.*/\.dcr/v[0-9]+/e)[0-9]+(.*)")
_HOLD = re.compile(r"(.*/holds/[^/]+/)[0-9a-f]{32}\.json")
_OFFER = re.compile(r"(.*/versions/[0-9]+/direct/)[0-9]+\.json")
_DECISION = re.compile(r".*/versions/[0-9]+/decision\.json")
_LEASE = re.compile(r"(.*/)lease-[0-9]+")
_UNASKED = re.compile(r"store/test/versions/000000/applied(/rollout\.json)?")
_TEMPORARY = re.compile(r"(.*/)?\.tmp-[^/]+")


def contents(root: Path, *, skip: tuple[str, ...] = ("dcr.yaml",)) -> dict[str, str]:
    """What each file and directory below ``root`` means, by its path there.

    Files by digest, but for: receipts without seconds and bytes moved, which differ from run to run; decisions with
    the word "right" in place of a receipt's digest where it is that receipt's; leases as one entry, whatever their
    numbers, and sets of journals without theirs; journals by their patches, whose order is the order in which parts
    came; holds and offers as one entry each, as every try makes its own; the publisher's record as it will be once
    it is settled by the store's decision, which the next command that looks at it does. Temporary files of killed
    writers (``.tmp-*``) are documented leavings, and an apply that finds nothing to do still tells the store that
    version 0 is applied: both are left out.
    """
    out: dict[str, str] = {}
    for folder, inner, files in os.walk(root):
        here = os.path.relpath(folder, root)
        for path in (_name(f"{here}/{name}") for name in inner):
            if not _UNASKED.fullmatch(path):
                out[path] = "directory"
        for name in files:
            path = _name(f"{here}/{name}")
            if path in skip or _TEMPORARY.fullmatch(path) or _UNASKED.fullmatch(path):
                continue
            if lease := _LEASE.fullmatch(path):
                path = lease[1] + "lease"
                out[path] = out.get(path, "") + "one"
                continue
            if hold := _HOLD.fullmatch(path):  # one for every try, as of offers
                out[hold[1] + "hold"] = "some"
                continue
            if offer := _OFFER.fullmatch(path):
                out[offer[1] + "offer"] = "some"
                continue
            out[path] = _meaning(Path(folder) / name, path)
    _settle(root, out)
    return out


def _name(path: str) -> str:
    """A path, whatever the epoch in it."""
    return _EPOCH.sub(r"\1\2", os.path.normpath(path))


def difference(have: Mapping[str, str], want: Mapping[str, str]) -> str:
    """What differs, in words; empty where nothing does."""
    lines = [f"{path} is missing" for path in want if path not in have]
    lines += [f"{path} is too many" for path in have if path not in want]
    lines += [
        f"{path}: {have[path][:300]} instead of {want[path][:300]}"
        for path in want
        if path in have and have[path] != want[path]
    ]
    return "; ".join(sorted(lines)[:8])


def _settle(root: Path, out: dict[str, str]) -> None:
    pending = root / "state/pending.json"
    if not pending.exists():
        return
    try:
        version = json.loads(pending.read_bytes())["version"]
        decision = root / f"store/test/versions/{version:06d}/decision.json"
        committed = json.loads(decision.read_bytes())["commit"] if decision.exists() else None
    except (ValueError, KeyError, TypeError):
        return  # torn: its digest tells
    if committed is not None:
        settled = out.pop("state/pending.json")
        if committed:
            out["state/baseline.json"] = settled


def _journal(path: Path) -> str:
    told = describe(path)
    if told["torn"] or not told["finished"]:
        return f"an unfinished journal: {told}"
    patches = read_journal(path, loads(Binding, dumps(told["binding"]), str(path)))
    whole = sorted((part, hashlib.sha256(repr(_plain(patch)).encode()).hexdigest()) for part, patch in patches)
    return f"{told['binding']}, patches {hashlib.sha256(repr(whole).encode()).hexdigest()[:16]}"


def _plain(patch: Patch) -> list[object]:
    values = (getattr(patch, f.name) for f in dataclasses.fields(patch))
    return [v.tobytes() if isinstance(v, np.ndarray) else v for v in values]


def _meaning(path: Path, name: str) -> str:
    if path.suffix == ".journal":
        return _journal(path)

    def beside(key: str) -> bytes | None:
        other = path.parent / os.path.relpath(key, os.path.dirname(name))
        return other.read_bytes() if other.exists() else None

    return _digest(name, path.read_bytes(), beside)


def _digest(name: str, raw: bytes, read: Any) -> str:
    try:
        if _RECEIPT.fullmatch(name):
            plain = {k: v for k, v in json.loads(raw).items() if k not in ("seconds", "bytes", "ranks")}
            # Whoever finds everything done, its receipt apart, says so.
            plain["detail"] = {k: "apply" if v == "done" else v for k, v in plain["detail"].items() if k != "fetched"}
            return json.dumps(plain, sort_keys=True)
        if _DECISION.fullmatch(name):
            plain = json.loads(raw)
            for site, digest in plain["prepared"].items():
                receipt = read(f"{os.path.dirname(name)}/prepared/{site}.json")
                right = receipt is not None and hashlib.sha256(receipt).hexdigest() == digest
                plain["prepared"][site] = "right" if right else f"wrong: {digest}"
            return json.dumps(plain, sort_keys=True)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        return f"no document of its kind ({error}): {raw[:80]!r}"
    return f"{len(raw)} bytes, sha256 {hashlib.sha256(raw).hexdigest()[:16]}"
