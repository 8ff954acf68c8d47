"""Kinds of tensors: names without their numbers, so that the layers of a model are counted together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..model import TensorSpec

_NUMBER = re.compile(r"(?<![^./_])\d+(?![^./_])")  # a whole component of a name


def kind_of(name: str) -> str:
    """A tensor's kind: its name with every number replaced."""
    return _NUMBER.sub("*", name)


def layer_of(name: str) -> int | None:
    """The first number in a tensor's name."""
    found = _NUMBER.search(name)
    return int(found[0]) if found else None


def kind_rows(tensors: Sequence[TensorSpec], counts: np.ndarray) -> list[dict[str, Any]]:
    """``kind``, ``dtype``, ``words`` and ``changed`` of every kind, in order of first appearance.

    Parameters
    ----------
    counts : uint64 (tensors, 2)
        Words and changed words of each tensor.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for tensor, (words, changed) in zip(tensors, counts.tolist(), strict=True):
        row = rows.setdefault((kind_of(tensor.name), tensor.dtype), [0, 0])
        row[0] += words
        row[1] += changed
    return [{"kind": k, "dtype": d, "words": w, "changed": c} for (k, d), (w, c) in rows.items()]
