"""The vocabulary as frozen dataclasses; every one of them travels as JSON (see :mod:`dcr_mpi.jsonable`).

Geometry: a *tensor* has a canonical name, dtype and global shape; a *layout* says which *box* of which dataset of
which shard holds which box of which tensor. Protocol: *policy*, *manifest*, *receipt*, *decision* are the objects
of the store; *replica record* is the site's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import le, lt, sub
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A hyper-rectangle ``start <= i < stop``, one bound per dimension; ``()`` for a scalar."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Shape) -> Box:
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> Shape:
        return tuple(map(sub, self.stop, self.start))

    @property
    def size(self) -> int:
        """Elements inside."""
        return math.prod(self.shape)

    def within(self, other: Box) -> bool:
        alike = len(self.start) == len(other.start)
        return alike and all(map(le, other.start, self.start)) and all(map(le, self.stop, other.stop))

    def meet(self, other: Box) -> Box | None:
        """The common part, or None where there is none (an empty box meets nothing)."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, stop) if all(map(lt, start, stop)) else None


@dataclass(frozen=True)
class TensorSpec:
    """One parameter or buffer: canonical name, canonical dtype name, global shape, other names of the same storage."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """``local`` box of a dataset holds ``canonical`` box of ``tensor``; equal extents once 1s are dropped."""

    tensor: str
    local: Box
    canonical: Box


@dataclass(frozen=True)
class DatasetLayout:
    """One dataset of a shard: its path, local shape and dtype, its pieces, and the padding that holds no tensor."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]
    padding: tuple[Box, ...] = ()
    names: tuple[str, ...] = ()  # further hard links to the same storage


@dataclass(frozen=True)
class ShardLayout:
    """One shard: a plain file name inside the checkpoint's directory, and its datasets."""

    file: str
    datasets: tuple[DatasetLayout, ...]


@dataclass(frozen=True)
class Layout:
    """Where a whole checkpoint (``name`` = "trainer" or the site's name) keeps every tensor."""

    name: str
    shards: tuple[ShardLayout, ...]


@dataclass(frozen=True)
class Policy:
    """The put-once birth certificate of a policy: its tensors, in canonical order, and the trainer's layout."""

    policy: str
    tensors: tuple[TensorSpec, ...]
    trainer: Layout
    format: int = 1


@dataclass(frozen=True)
class SiteLayout:
    """Registration of a site: its layout, bound to the policy by the digest of ``policy.json``."""

    site: str
    policy_sha256: str
    layout: Layout
    format: int = 1


@dataclass(frozen=True)
class Tile:
    """A box of a tensor that lies whole in one piece of one trainer shard and of every site's layout."""

    tensor: int  # index into Policy.tensors
    start: tuple[int, ...]
    stop: tuple[int, ...]
    shard: int  # index of the trainer shard that encodes it
    group: int = 0  # tiles of one group come from one trainer shard and go to the same shards of every site

    @property
    def box(self) -> Box:
        return Box(self.start, self.stop)


@dataclass(frozen=True)
class Cut:
    """Where a part begins: element ``element`` (a multiple of the block) of tile ``tile``, in tile order."""

    tile: int
    element: int


@dataclass(frozen=True)
class Tiling:
    """Tiles in canonical order and the parts they are cut into; ``layouts`` maps site name to layout digest.

    ``block`` is in elements, like ``Cut.element``. Part *k* runs from ``cuts[k]`` to ``cuts[k + 1]``.
    """

    policy_sha256: str
    layouts: dict[str, str]
    block: int
    tiles: tuple[Tile, ...]
    cuts: tuple[Cut, ...]
    format: int = 1


@dataclass(frozen=True)
class Open:
    """Announces a version: what it is made from and how its parts are cut. Receivers may start to prepare."""

    policy_sha256: str
    version: int
    base: int | None  # None: an anchor, made from nothing
    base_state: str
    tiling: str  # digest that names the tiling object
    parts: int
    format: int = 1


@dataclass(frozen=True)
class Endpoint:
    """Where one rank of a publisher serves the parts that it builds: ``certificate`` is the SHA-256 of its own, in
    hex."""

    host: str
    port: int
    certificate: str


@dataclass(frozen=True)
class Offer:
    """A publisher's word that its ranks serve the parts of a version themselves, to whoever shows ``token``.

    Part *k* is at ``endpoints[owners[k]]``. ``store`` says what becomes of the parts besides: they go to the store
    while they are built (also), after all sites have them (after), or never. A publisher that runs again makes another
    offer.
    """

    policy_sha256: str
    version: int
    token: str = field(repr=False)  # 64 hex digits
    endpoints: tuple[Endpoint, ...]
    owners: tuple[int, ...]
    store: str
    format: int = 1


@dataclass(frozen=True)
class PartEntry:
    """One sealed part: ``size`` bytes under ``key`` with this SHA-256; ``changed`` of ``elements`` differ."""

    index: int
    key: str
    size: int
    sha256: str
    elements: int
    changed: int


@dataclass(frozen=True)
class Manifest:
    """Seals a version. ``tensors`` are the state digests of the target, in the policy's tensor order."""

    policy_sha256: str
    version: int
    base: int | None
    base_state: str
    state: str
    tensors: tuple[str, ...]
    tiling: str
    parts: tuple[PartEntry, ...]
    elements: int
    changed: int
    dense_bytes: int
    payload_bytes: int
    step: int | None = None
    format: int = 1


@dataclass(frozen=True)
class Receipt:
    """What an act did. ``subject`` names what it was done to (a site or the publisher).

    ``seconds`` and ``bytes`` are per stage; ``device`` is where the kernels ran.
    """

    act: str
    subject: str
    policy_sha256: str
    version: int
    base: int | None
    manifest_sha256: str
    state: str
    ranks: int
    device: str
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    format: int = 1


@dataclass(frozen=True)
class Decision:
    """The one put-once decision of a version; ``prepared`` maps each site seen to its receipt's SHA-256."""

    policy_sha256: str
    version: int
    commit: bool
    manifest_sha256: str  # "" where a version is aborted before it was sealed
    prepared: dict[str, str]
    reason: str = ""
    format: int = 1


@dataclass(frozen=True)
class Hold:
    """A site's word that it works from ``version`` on (an anchor, then the deltas after it) before it has a receipt.

    The collector keeps both while the object is younger than the lease of a site, by the store's own clock, and the
    site has not reported since.
    """

    site: str
    policy_sha256: str
    version: int
    format: int = 1


@dataclass(frozen=True)
class ReplicaRecord:
    """The site's own word on its replica, replaced atomically, last.

    ``applying`` is set durably before the first weight byte of that version changes: while it is set, the
    replica is between ``version`` and ``applying`` and only the journal can bring it out.
    """

    site: str
    policy_sha256: str
    layout_sha256: str
    version: int
    state: str
    tensors: tuple[str, ...]
    files: dict[str, int]  # shard file name -> size in bytes
    applying: int | None = None
    format: int = 1
