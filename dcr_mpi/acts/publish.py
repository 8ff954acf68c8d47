"""Building and storing the parts of one version over all ranks; used by encode (deltas) and init (anchors)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..codec import Scheme, ValueChoice
from ..digest import sha256, state_digest
from ..dtypes import dtype
from ..errors import CorruptInput
from ..jsonable import dumps, loads
from ..layout import part_spans
from ..model import Manifest, Open, PartEntry, Policy, Receipt, Tiling
from .offering import offer
from .parts import Built, PartBuilder, deal
from .ports import Ports
from .stream import announce

_UPLOADS = 2


@dataclass(frozen=True)
class CodecSettings:
    """How versions are coded; sizes in bytes and words. See configs/README.md for the meaning of each key."""

    positions: str = "auto"
    values: ValueChoice = "ulp"
    level: int | None = 1
    block: int = 1 << 18
    bucket_bytes: int = 32 << 20
    part_bytes: int = 64 << 20
    self_check: bool = True
    link: float | None = None  # bytes per second that one rank can send

    @property
    def scheme(self) -> Scheme:
        return Scheme(self.positions, self.values, self.level, self.link)


@dataclass(frozen=True)
class Published:
    """All parts of a version, by index, and sums over them per tensor, each uint64 (tensors, 2).

    ``lanes`` are of the state digest; ``counts`` are words and changed words.
    """

    entries: tuple[PartEntry, ...]
    lanes: np.ndarray
    counts: np.ndarray


def part_bytes(tiling: Tiling, policy: Policy, part: int) -> int:
    """Dense bytes that a part covers."""
    return sum(
        (s.stop - s.start) * dtype(policy.tensors[tiling.tiles[s.tile].tensor].dtype).word_bytes
        for s in part_spans(tiling, policy.tensors, part)
    )


def publish(
    ports: Ports, builder: PartBuilder, policy: Policy, tiling: Tiling, version: int, *, anchor: bool = False
) -> Published:
    """Build this rank's share of the parts and put them, each uploading while the next is built.

    Raises
    ------
    Conflict
        A part's key, which is made of its content's digest, holds other content.
    """
    sizes = [part_bytes(tiling, policy, k) for k in range(len(tiling.cuts))]
    # Where words are in a rank's memory, nobody else can code them.
    owners = deal(sizes, ports.comm.size) if builder.everywhere else [tiling.tiles[c.tile].shard for c in tiling.cuts]
    mine = [part for part, owner in enumerate(owners) if owner == ports.comm.rank]
    progress = ports.events.progress(sum(sizes[k] for k in mine), "anchor" if anchor else "encode", version)
    outlet = None if anchor else ports.outlet
    if outlet is not None:
        offer(ports, outlet, tiling.policy_sha256, version, owners)
    stores = outlet is None or outlet.store == "also"
    sums = np.zeros((len(policy.tensors), 4), np.uint64)  # lanes, words, changed
    entries: list[PartEntry] = []
    uploads: deque[Future[None]] = deque()
    pool, orderly = ThreadPoolExecutor(_UPLOADS, "upload"), False
    try:
        for index in mine:
            ports.comm.heed()
            with ports.events.stage("encode", sizes[index]):
                built = builder.build(index)
            for tensor, lanes in built.lanes.items():
                sums[tensor] += np.array([*lanes, *built.counts[tensor]], np.uint64)
            entries.append(_entry(ports, built, version, index, anchor))
            if outlet is not None:
                outlet.put(entries[-1], built.data)
            if stores:
                uploads.append(pool.submit(_put, ports, entries[-1], built.data, None if anchor else version))
            while len(uploads) > _UPLOADS:
                uploads.popleft().result()
            progress.add(sizes[index])
        with ports.events.stage("upload", sum(e.size for e in entries) if stores else 0):
            for upload in uploads:
                upload.result()
        orderly = True
    finally:
        pool.shutdown(wait=orderly, cancel_futures=True)  # an error does not wait for an upload under way
    progress.done()
    gathered = ports.comm.allgather(dumps(entries), "parts of all ranks")
    every = [e for raw in gathered for e in loads(tuple[PartEntry, ...], raw, "parts of a rank")]
    if not anchor:
        ports.events.note(version=version, words=sum(e.elements for e in entries), payload=sum(e.size for e in entries))
    sums = ports.comm.sum(sums, "state digest and changes of the new version")
    return Published(tuple(sorted(every, key=lambda e: e.index)), sums[:, :2], sums[:, 2:])


def seal(
    policy: Policy, opened: Open, entries: Sequence[PartEntry], lanes: Sequence[str], step: int | None
) -> Manifest:
    """The manifest of an opened version: a function of content only, so that every publisher of it writes the same."""
    if [e.index for e in entries] != list(range(opened.parts)):
        raise CorruptInput(f"version {opened.version}", found=f"{len(entries)} parts", expected=f"{opened.parts}")
    return Manifest(
        policy_sha256=opened.policy_sha256,
        version=opened.version,
        base=opened.base,
        base_state=opened.base_state,
        state=state_digest(policy.tensors, lanes),
        tensors=tuple(lanes),
        tiling=opened.tiling,
        parts=tuple(entries),
        elements=sum(e.elements for e in entries),
        changed=sum(e.changed for e in entries),
        dense_bytes=sum(math.prod(t.shape) * dtype(t.dtype).itemsize for t in policy.tensors),
        payload_bytes=sum(e.size for e in entries),
        step=step,
    )


def encoded_receipt(
    ports: Ports, manifest: Manifest, digest: str, act: str = "encoded", kinds: Sequence[dict[str, Any]] = ()
) -> Receipt:
    """``kinds``: rows of :func:`.kinds.kind_rows`, from who counted the changes; a version met sealed has none."""
    sizes = {"payload": manifest.payload_bytes, "dense": manifest.dense_bytes}
    detail: dict[str, Any] = {"changed": manifest.changed, "elements": manifest.elements, "parts": len(manifest.parts)}
    if kinds:
        detail["kinds"] = list(kinds)
    return ports.receipt(act, "trainer", manifest, digest, sizes=sizes, detail=detail)


def _entry(ports: Ports, built: Built, version: int, index: int, anchor: bool) -> PartEntry:
    digest = sha256(built.data)
    key = ports.catalog.contents.part_key(version, index, digest, anchor)
    return PartEntry(index, key, len(built.data), digest, built.words, built.changed)


def _put(ports: Ports, entry: PartEntry, data: bytes, version: int | None) -> None:
    """Put a part, and then, of a delta of ``version``, its announcement."""
    ports.catalog.contents.put_part(entry, data)
    if version is not None:
        announce(ports.catalog, version, entry)
