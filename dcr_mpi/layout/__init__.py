"""Layouts: which box of which dataset holds which box of which tensor, and the tiles that several layouts share."""

from .boxes import refine, to_local
from .check import check_file_name, check_layout, is_path, pieces, tensors_of
from .tiles import (
    Place,
    Placement,
    Span,
    check_tiling,
    cut_parts,
    geometry_rows,
    make_tiles,
    part_spans,
    tile_region,
    tile_words,
    word_box,
    word_shape,
)

__all__ = [
    "Place",
    "Placement",
    "Span",
    "check_file_name",
    "check_layout",
    "check_tiling",
    "cut_parts",
    "geometry_rows",
    "is_path",
    "make_tiles",
    "part_spans",
    "pieces",
    "refine",
    "tensors_of",
    "tile_region",
    "tile_words",
    "to_local",
    "word_box",
    "word_shape",
]
