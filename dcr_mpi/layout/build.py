"""Builders: how training and inference frameworks cut tensors, as dataset layouts.

Each returns the :class:`DatasetLayout` of one dataset in shard ``index`` of ``parts``; a shard is a tuple of them.
Shapes are in elements. ``q``, ``k``, ``v`` and the like are canonical tensors; ``path`` is the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Box, DatasetLayout, Piece, Shape


def whole(path: str, shape: Shape, dtype: str, names: tuple[str, ...] = (), tensor: str = "") -> DatasetLayout:
    """A dataset that holds one whole tensor (also a replica of it, or a tie under ``names``)."""
    box = Box.whole(shape)
    return DatasetLayout(path, tuple(shape), dtype, (Piece(tensor or path, box, box),), (), names)


def chunk(extent: int, parts: int, index: int) -> tuple[int, int]:
    """Start and stop of chunk ``index`` of ``parts`` of an extent; the first chunks take the remainder."""
    small, extra = divmod(extent, parts)
    start = index * small + min(index, extra)
    return start, start + small + (index < extra)


def split(tensor: str, shape: Shape, dtype: str, axis: int, parts: int, index: int, path: str = "") -> DatasetLayout:
    """A row split (``axis`` 0), a column split (1) or a split along any other axis."""
    start, stop = chunk(shape[axis], parts, index)
    canonical = _along(Box.whole(shape), axis, start, stop)
    return DatasetLayout(
        path or tensor, canonical.shape, dtype, (Piece(tensor, Box.whole(canonical.shape), canonical),)
    )


def fused(
    path: str, members: Sequence[tuple[str, Shape]], dtype: str, axis: int, parts: int, index: int
) -> DatasetLayout:
    """Several tensors side by side along ``axis``, each split into ``parts``: fused QKV, gate-up."""
    shape = list(members[0][1])
    at, placed = 0, []
    for tensor, member in members:
        start, stop = chunk(member[axis], parts, index)
        canonical = _along(Box.whole(member), axis, start, stop)
        placed.append((tensor, canonical, at))
        at += stop - start
    shape[axis] = at
    local = Box.whole(tuple(shape))
    pieces = tuple(
        Piece(tensor, _along(local, axis, begin, begin + box.shape[axis]), box) for tensor, box, begin in placed
    )
    return DatasetLayout(path, tuple(shape), dtype, pieces)


def grouped_qkv(
    path: str,
    q: str,
    k: str,
    v: str,
    dtype: str,
    *,
    groups: int,
    queries: int,
    head: int,
    hidden: int,
    parts: int,
    index: int,
) -> DatasetLayout:
    """Group-interleaved QKV: for each key-value group its ``queries`` query heads, its key head, its value head.

    Rows are ``head`` wide heads of ``hidden`` columns; groups are split over ``parts``. The canonical tensors are
    q (groups * queries * head, hidden) and k, v (groups * head, hidden).
    """
    first, last = chunk(groups, parts, index)
    pieces, at = [], 0
    for group in range(first, last):
        for tensor, heads in ((q, queries), (k, 1), (v, 1)):
            rows = heads * head
            pieces.append(
                Piece(tensor, Box((at, 0), (at + rows, hidden)), Box((group * rows, 0), ((group + 1) * rows, hidden)))
            )
            at += rows
    return DatasetLayout(path, (at, hidden), dtype, tuple(pieces))


def stacked(path: str, tensors: Sequence[str], shape: Shape, dtype: str) -> DatasetLayout:
    """Tensors of one shape stacked along a new first axis: experts kept one tensor per expert elsewhere."""
    box = Box.whole(shape)
    pieces = tuple(Piece(t, Box((e, *box.start), (e + 1, *box.stop)), box) for e, t in enumerate(tensors))
    return DatasetLayout(path, (len(tensors), *shape), dtype, pieces)


def padded(tensor: str, shape: Shape, dtype: str, rows: int, parts: int, index: int, path: str = "") -> DatasetLayout:
    """A row split of a tensor whose rows are padded to ``rows`` (a multiple of ``parts``), as vocabularies are.

    Local rows past the tensor's last are padding: in no canonical box, and never written.
    """
    each = rows // parts
    start, stop = min(index * each, shape[0]), min((index + 1) * each, shape[0])
    local = Box.whole((each, *shape[1:]))
    pieces = (Piece(tensor, _along(local, 0, 0, stop - start), _along(Box.whole(shape), 0, start, stop)),)
    rest = (_along(local, 0, stop - start, each),)
    return DatasetLayout(
        path or tensor, local.shape, dtype, pieces if stop > start else (), rest if stop - start < each else ()
    )


def _along(box: Box, axis: int, start: int, stop: int) -> Box:
    return Box((*box.start[:axis], start, *box.start[axis + 1 :]), (*box.stop[:axis], stop, *box.stop[axis + 1 :]))
