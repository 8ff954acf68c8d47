"""Cutting boxes: the common refinement of a set of boxes, and a canonical box seen in a dataset's coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import GeometryError
from ..model import Box, Piece


def refine(whole: Box, boxes: Sequence[Box]) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """Cut ``whole`` into disjoint cells that no edge of any box crosses.

    Yields
    ------
    (Box, tuple of int)
        A cell, in row-major order of its start within each cut, and the indices of the boxes that contain it
        (empty where none does). Empty boxes are left out; an empty ``whole`` has no cells.
    """
    if whole.size == 0:
        return
    pending = [(whole, [(i, b) for i, b in enumerate(boxes) if b.size])]
    while pending:
        cell, candidates = pending.pop()
        meeting = [(i, b) for i, b in candidates if b.meet(cell) is not None]
        cutting = [b for _, b in meeting if not cell.within(b)]
        if not cutting:
            yield cell, tuple(i for i, _ in meeting)
            continue
        axis, at = _best_cut(cell, cutting)
        low = Box(cell.start, (*cell.stop[:axis], at, *cell.stop[axis + 1 :]))
        high = Box((*cell.start[:axis], at, *cell.start[axis + 1 :]), cell.stop)
        pending += [(high, meeting), (low, meeting)]


def _best_cut(cell: Box, cutting: Sequence[Box]) -> tuple[int, int]:
    """The middle edge of the dimension where cutting there crosses fewest boxes: cells stay as large as they can."""
    best: tuple[int, int, int] | None = None
    for axis, (a, b) in enumerate(zip(cell.start, cell.stop, strict=True)):
        edges = sorted({e for box in cutting for e in (box.start[axis], box.stop[axis]) if a < e < b})
        if edges:
            at = edges[len(edges) // 2]
            crossed = sum(box.start[axis] < at < box.stop[axis] for box in cutting)
            if best is None or crossed < best[0]:
                best = (crossed, axis, at)
    assert best is not None  # a box that meets a cell without containing it has an edge inside it
    return best[1], best[2]


def to_local(piece: Piece, box: Box) -> Box:
    """``box``, a part of ``piece.canonical``, in the dataset's own coordinates.

    The two boxes of a piece have equal extents once extents of 1 are dropped, in the same order, so a row-major
    walk over one is a row-major walk over the other.

    Raises
    ------
    GeometryError
        The extents of the piece do not match.
    """
    check_piece(piece)
    wide = [d for d, n in enumerate(piece.canonical.shape) if n != 1]
    offsets = [(box.start[d] - piece.canonical.start[d], box.stop[d] - piece.canonical.start[d]) for d in wide]
    start, stop, k = [], [], 0
    for a, n in zip(piece.local.start, piece.local.shape, strict=True):
        low, high = (0, 1) if n == 1 else offsets[k]
        k += n != 1
        start.append(a + low)
        stop.append(a + high)
    return Box(tuple(start), tuple(stop))


def check_piece(piece: Piece) -> None:
    """Raise GeometryError unless the piece's two boxes hold the same elements in the same order."""
    local, canonical = ([n for n in box.shape if n != 1] for box in (piece.local, piece.canonical))
    if local != canonical:
        raise GeometryError(
            f"piece of tensor {piece.tensor!r}",
            found=f"local extents {piece.local.shape}",
            expected=f"the canonical extents {piece.canonical.shape}, up to extents of 1",
        )
