"""The zoo: one builder of awkward HDF5 files, for every test that reads checkpoints.

``ZOO`` maps a name to a builder of one file, ``PAIRS`` to one of a baseline and a new version, ``SETS`` to one of a
directory of shards. Parametrise over them; :func:`build` makes one file. Names are stable: pick subsets by prefix
(``dtype_``, ``change_``, ``gaps_``, ``sparse_``, ``geometry_``, ``killed_``, ``truncated_``, ``set_``).
"""

from pathlib import Path

from . import broken, names, pairs, sets, storage, values
from .words import PAIRS, SETS, ZOO, PairCase, Refusal, SetCase, Want, ZooCase

__all__ = ["PAIRS", "SETS", "ZOO", "PairCase", "Refusal", "SetCase", "Want", "ZooCase", "build"]
_ROOMS = (broken, names, pairs, sets, storage, values)  # importing them fills the tables


def build(kind: str, path: Path) -> ZooCase:
    """Build the file ``kind`` at ``path``, which does not exist yet."""
    return ZOO[kind](path)
