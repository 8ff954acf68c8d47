"""Models that the benches move: of which shape, and how many layers make a size."""

from __future__ import annotations

import math
from dataclasses import replace

from dcr_mpi.dtypes import dtype
from dcr_mpi.layout import tensors_of
from dcr_mpi.synth import Shape, trainer_layout

NARROW = Shape()  # tiles of some 0.3 MiB: far smaller than any model of a GiB has, so it costs more beside the words
# Matrices as models of half a billion weights have them (Qwen2.5-0.5B: 896 x 4864, 8.7 MB): tiles of some 2.8 MiB.
WIDE = Shape(hidden=1024, inner=2816, groups=4, queries=4, vocabulary=34003, padded=34304, site_padded=34048)
SHAPES = {"wide": WIDE, "narrow": NARROW}


def of_size(shape: Shape, mib: float) -> Shape:
    """The shape with as many layers, one at least, as come closest to so many MiB."""
    one, two = (_bytes(replace(shape, layers=n)) for n in (1, 2))
    return replace(shape, layers=max(1, round(1 + (mib * (1 << 20) - one) / (two - one))))


def _bytes(shape: Shape) -> int:
    return sum(math.prod(t.shape) * dtype(t.dtype).itemsize for t in tensors_of(trainer_layout(shape)))
