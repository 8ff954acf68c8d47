"""Validation of layouts, before any byte moves, and what a layout says about the tensors."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..dtypes import dtype, is_container
from ..errors import GeometryError
from ..model import Box, DatasetLayout, Layout, Piece, TensorSpec
from .boxes import check_piece, refine

LIMIT_DIMS = 32


def pieces(layout: Layout) -> Iterator[tuple[int, DatasetLayout, Piece]]:
    """All (shard index, dataset, piece) of a layout, in order."""
    for shard, files in enumerate(layout.shards):
        for dataset in files.datasets:
            for piece in dataset.pieces:
                yield shard, dataset, piece


def tensors_of(layout: Layout) -> tuple[TensorSpec, ...]:
    """The tensor table that a trainer's layout implies, sorted by name.

    A tensor's shape is the upper corner of its canonical boxes; its dtype that of its datasets; the further names
    of a dataset that holds one whole tensor under its own name are that tensor's aliases.

    Raises
    ------
    GeometryError
        Datasets of one tensor with different dtypes or ranks, or a name that is an alias of two tensors, or an
        alias and a tensor at once.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    aliases: dict[str, set[str]] = defaultdict(set)
    for _, dataset, piece in pieces(layout):
        stop = piece.canonical.stop
        known = shapes.setdefault(piece.tensor, stop)
        if len(known) != len(stop):
            raise GeometryError(
                f"tensor {piece.tensor!r}",
                found=f"boxes of {len(stop)} and {len(known)} dimensions",
                expected="one number of dimensions",
            )
        shapes[piece.tensor] = tuple(map(max, known, stop))
        if dtypes.setdefault(piece.tensor, dataset.dtype) != dataset.dtype:
            raise GeometryError(
                f"tensor {piece.tensor!r}",
                found=f"{dtypes[piece.tensor]} and {dataset.dtype}",
                expected="one dtype",
                remedy="publish all its shards with one dtype",
            )
        names = {dataset.path, *dataset.names}
        if piece.tensor in names:
            aliases[piece.tensor] |= names - {piece.tensor}
    taken: dict[str, str] = {}
    for tensor, others in aliases.items():
        for name in others:
            if taken.setdefault(name, tensor) != tensor:
                raise GeometryError(
                    f"name {name!r}",
                    found=f"an alias of {taken[name]!r} and of {tensor!r}",
                    expected="one meaning",
                    remedy="tie the same names in every shard",
                )
    both = sorted(set(shapes) & set().union(*aliases.values()))
    if both:
        raise GeometryError(
            f"name {both[0]!r}",
            found="an alias of one tensor and a tensor of its own in another shard",
            expected="one meaning",
            remedy="tie it in every shard, or in none",
        )
    return tuple(TensorSpec(n, dtypes[n], shapes[n], tuple(sorted(aliases[n]))) for n in sorted(shapes))


def check_layout(layout: Layout, tensors: Sequence[TensorSpec]) -> None:
    """Check that a layout holds every tensor wholly, and that every element of its datasets is accounted for.

    Raises
    ------
    GeometryError
        A tensor or part of one is missing; boxes overlap partly (replicas are equal or nested boxes); a local
        element belongs to two pieces, or to none and is no declared padding; dtypes or extents differ; a bad name;
        a tensor, shard or dataset listed twice.
    """
    table = {t.name: t for t in tensors}
    if len(table) != len(tensors):
        raise GeometryError("tensors", found="one name twice", expected="one entry per tensor")
    held: dict[str, list[Box]] = {t.name: [] for t in tensors}
    files = [s.file for s in layout.shards]
    for file in files:
        check_file_name(file)
    if len(set(files)) != len(files):
        raise GeometryError(f"layout {layout.name!r}", found="a shard named twice", expected="one entry per shard file")
    for shard in layout.shards:
        names = [name for dataset in shard.datasets for name in (dataset.path, *dataset.names)]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GeometryError(
                f"dataset {twice!r} of {shard.file}",
                found="one name twice",
                expected="one entry per dataset: its pieces share its storage",
            )
        for dataset in shard.datasets:
            where = f"dataset {dataset.path!r} of {shard.file}"
            _check_local(dataset, where)
            for piece in dataset.pieces:
                if piece.tensor not in table:
                    raise GeometryError(
                        where,
                        found=f"tensor {piece.tensor!r}",
                        expected="a tensor of the policy",
                        remedy="correct the layout, or start a new policy with this tensor",
                    )
                _check_against(piece, table[piece.tensor], dataset, where)
                held[piece.tensor].append(piece.canonical)
    for spec in tensors:
        _check_coverage(layout.name, spec, held[spec.name])


def check_file_name(file: str) -> None:
    """Raise GeometryError unless ``file`` is a plain name inside its directory."""
    plain = file not in ("", ".", "..") and "/" not in file and not file.startswith(".dcr")
    if not plain or not is_path(file) or len(os.fsencode(file)) > 255:
        raise GeometryError("shard file name", found=repr(file[:80]), expected="a plain file name, not a path")


def is_path(text: str) -> bool:
    """Whether a file system could have it: no zero, nothing that no bytes stand for."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_local(dataset: DatasetLayout, where: str) -> None:
    dtype(dataset.dtype)
    whole = Box.whole(dataset.shape)
    if len(dataset.shape) > LIMIT_DIMS or any(n < 0 for n in dataset.shape):
        raise GeometryError(
            where, found=f"shape {dataset.shape}", expected=f"at most {LIMIT_DIMS} extents of 0 or more"
        )
    boxes = [p.local for p in dataset.pieces] + list(dataset.padding)
    for box in boxes:
        if len(box.start) != len(box.stop) or not box.within(whole) or any(n < 0 for n in box.shape):
            raise GeometryError(
                where, found=f"local box {box.start}..{box.stop}", expected=f"a box inside {dataset.shape}"
            )
    for cell, owners in refine(whole, boxes):
        if len(owners) != 1:
            found = f"elements {cell.start}..{cell.stop} in " + (f"{len(owners)} pieces" if owners else "no piece")
            raise GeometryError(where, found=found, expected="each element in one piece, or declared as padding")


def _check_against(piece: Piece, spec: TensorSpec, dataset: DatasetLayout, where: str) -> None:
    whole = Box.whole(spec.shape)
    if len(piece.canonical.start) != len(piece.canonical.stop) or not piece.canonical.within(whole):
        raise GeometryError(
            where,
            found=f"canonical box {piece.canonical.start}..{piece.canonical.stop}",
            expected=f"a box inside {spec.name!r} of shape {spec.shape}",
        )
    check_piece(piece)
    mine, canonical = dtype(dataset.dtype), dtype(spec.dtype)
    fits = mine.name == canonical.name or (is_container(mine.name) and mine.itemsize == canonical.itemsize)
    if not fits:
        raise GeometryError(
            where,
            found=f"dtype {mine.name}",
            expected=f"{canonical.name} as tensor {spec.name!r}",
            remedy="store it with the trainer's dtype; words are never converted",
        )


def _check_coverage(name: str, spec: TensorSpec, boxes: list[Box]) -> None:
    if not boxes:
        raise GeometryError(f"layout {name!r}", found=f"no piece of tensor {spec.name!r}", expected="every tensor")
    unique = list(dict.fromkeys(boxes))
    for cell, owners in refine(Box.whole(spec.shape), unique):
        if not owners:
            raise GeometryError(
                f"layout {name!r}, tensor {spec.name!r}",
                found=f"no piece for {cell.start}..{cell.stop}",
                expected="full coverage",
            )
        nest = sorted((unique[i] for i in owners), key=lambda b: b.size)
        for inner, outer in pairwise(nest):
            if not inner.within(outer):
                raise GeometryError(
                    f"layout {name!r}, tensor {spec.name!r}",
                    found=f"boxes {inner.start}..{inner.stop} and {outer.start}..{outer.stop} that overlap partly",
                    expected="disjoint, equal or nested boxes",
                )
