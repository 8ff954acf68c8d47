"""Calls of every kernel of a device, compared with the numpy room; the same for the shim and for a real GPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dcr_mpi.codec import block_table
from dcr_mpi.codec.classes import field
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels
from dcr_mpi.kernels.hazard import Model
from dcr_mpi.layout import Span, geometry_rows
from dcr_mpi.model import Box
from dcr_mpi.region import region_of
from tests.strategies import HOWS, BucketCase, change, random_words, word_type
from tests.unit.test_kernels import same

REFERENCE = get_kernels("numpy")
Check = Callable[[Kernels, BucketCase], None]


def check_changes(kernels: Kernels, case: BucketCase) -> None:
    args = (case.base, case.new, case.table.offset, case.table.size)
    expected, found = REFERENCE.changes(*args), kernels.changes(*args)
    for name in ("counts", "positions", "old", "new"):
        same(getattr(expected, name), getattr(found, name))


def check_gather(kernels: Kernels, case: BucketCase) -> None:
    moved = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    same(kernels.gather(case.new, case.table.offset, moved.counts, moved.positions), moved.new)


def check_scatter(kernels: Kernels, case: BucketCase) -> None:
    moved = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    target, expected = case.base.copy(), case.base.copy()
    REFERENCE.scatter(expected, case.table.offset, moved.counts, moved.positions, moved.new)
    kernels.scatter(target, case.table.offset, moved.counts, moved.positions, moved.new)
    same(target, expected)


def check_exponents(kernels: Kernels, case: BucketCase) -> None:
    for step in (1, 4, 7):
        args = (case.base, case.table.offset, case.table.size, *field(case.kind), step)
        same(kernels.exponents(*args), REFERENCE.exponents(*args))


def check_hazards(kernels: Kernels, case: BucketCase) -> None:
    """Rates up to the highest there are, and classes that never change."""
    shift, mask = field(case.kind)
    rng = np.random.default_rng(len(case.base))
    rate = np.where(rng.random(mask + 1) < 0.2, 0, rng.integers(0, 1 << 18, mask + 1)).astype(np.int64)
    one = np.zeros(mask + 1, np.int64)
    model = Model(shift, mask, 8, rate, one, np.zeros((1, 1), np.int64), np.full((1, 1), 4096, np.int64))
    moved = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    args = (model, case.base, case.table.offset, case.table.size, moved)
    same(kernels.hazards(*args), REFERENCE.hazards(*args))


def _geometry(case: BucketCase) -> np.ndarray:
    """Blocks as runs of boxes of one to three dimensions, at random places."""
    rng = np.random.default_rng(len(case.base) + 1)
    regions = []
    for size in case.table.size.tolist():
        shape = [(size,), (-(-size // 7), 7), (3, -(-size // 15), 5)][int(rng.integers(3))]
        start = tuple(int(n) for n in rng.integers(0, 4, len(shape)))
        whole = tuple(a + n + int(rng.integers(3)) for a, n in zip(start, shape, strict=True))
        regions.append(region_of(Box(start, tuple(a + n for a, n in zip(start, shape, strict=True))), whole))
    return geometry_rows(regions, rng.integers(0, 50, len(regions)))


def check_state_words(kernels: Kernels, case: BucketCase) -> None:
    args = (_geometry(case), case.new, case.table.offset, case.table.size)
    same(kernels.state_words(*args), REFERENCE.state_words(*args))


def check_state_changes(kernels: Kernels, case: BucketCase) -> None:
    moved = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    args = (_geometry(case), moved.counts, moved.positions, moved.old, moved.new)
    same(kernels.state_changes(*args), REFERENCE.state_changes(*args))


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


def large(words: int, name: str = "bf16", rate: float = 0.03, block: int = 1 << 18, seed: int = 0) -> BucketCase:
    """A bucket of two spans with ``words`` words in all, the second one short."""
    kind, rng = dtype(name), np.random.default_rng(seed)
    first = words - words // 3
    table = block_table([Span(0, 0, first), Span(2, block, block + words - first)], block)
    base = rng.integers(0, 2**64, table.length, dtype=np.uint64).astype(word_type(kind))
    new = np.where(rng.random(table.length) < rate, base + base.dtype.type(1), base)
    return BucketCase(kind, block, table, base, new, rng)


def every_way(name: str, seed: int = 0) -> BucketCase:
    """Blocks that changed in every way, some shorter than a chunk; also many of them."""
    kind, rng = dtype(name), np.random.default_rng(seed)
    sizes = (1, 63, 64, 65, 127, 128, 129, 256, 300, 1000, 5, 700)
    table = block_table([Span(tile, 0, size) for tile, size in enumerate(sizes)], 256)
    base = random_words(kind, table.length, rng)
    new = base.copy()
    for k in range(len(table)):
        change(table.view(new, k), HOWS[k % len(HOWS)], kind, rng)
    return BucketCase(kind, 256, table, base, new, rng)
