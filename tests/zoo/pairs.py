"""Pairs of files, a baseline and a new version, with every word that differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from .values import packed, write_sparse
from .words import KINDS, PAIRS, PairCase, noise, opaque, put

# What happens to a word, per float: name -> (old, new). +0.0 == -0.0 and NaN != NaN to a float; to us they are bits.
_SIGN = {"f8e4m3": 0x80, "f8e5m2": 0x80, "f16": 0x8000, "bf16": 0x8000, "f32": 1 << 31, "f64": 1 << 63}
_INF = {"f8e4m3": 0x78, "f8e5m2": 0x7C, "f16": 0x7C00, "bf16": 0x7F80, "f32": 0xFF << 23, "f64": 0x7FF << 52}
_QUIET = {"f8e4m3": 0x04, "f8e5m2": 0x02, "f16": 0x0200, "bf16": 0x0040, "f32": 1 << 22, "f64": 1 << 51}


def _transitions(name: str) -> Mapping[str, tuple[int, int]]:
    sign, inf, quiet = _SIGN[name], _INF[name], _QUIET[name]
    return {
        "minus_zero_to_zero": (sign, 0),
        "zero_to_minus_zero": (0, sign),
        "nan_payload": (inf | quiet, inf | quiet | 1),
        "nan_sign": (inf | quiet, inf | quiet | sign),
        "nan_to_number": (inf | quiet | 1, 1),
        "number_to_nan": (3, inf | quiet | 1),
        "signalling_to_quiet": (inf | 1, inf | quiet | 1),
        "inf_to_minus_inf": (inf, inf | sign),
        "largest_to_inf": (inf - 1, inf),
        "denormal": (1, 2),
        "denormal_to_normal": ((inf & -inf) - 1, inf & -inf),
        "sign_crossing": (sign | 1, 1),
        "exponent_step": ((inf >> 1) - 1, inf >> 1),
    }


def write(path: Path, datasets: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """One file of contiguous datasets: {path: (dtype, shape, bytes)}; ``rawN`` is written as opaque bytes."""
    with h5py.File(path, "w") as file:
        for name, (kind, shape, data) in datasets.items():
            put(file, name, opaque(int(kind[3:])) if kind.startswith("raw") else KINDS[kind], shape, data)


def _one_word(name: str, old: int, new: int) -> Callable[[Path, Path], PairCase]:
    def build(base: Path, fresh: Path) -> PairCase:
        same = _INF[name] | _QUIET[name]  # a NaN that stays: it must not count as changed
        write(base, {"w": (name, (5,), packed((same, old, same, 0, same), name))})
        write(fresh, {"w": (name, (5,), packed((same, new, same, 0, same), name))})
        return PairCase(base, fresh, {"w": {1: (old, new)}})

    return build


for _name in _SIGN:
    for _what, (_old, _new) in _transitions(_name).items():
        PAIRS[f"{_name}_{_what}"] = _one_word(_name, _old, _new)


def _spread(
    positions: Callable[[int], Sequence[int]], size: int = 200_000, kind: str = "bf16", shape: tuple[int, ...] = ()
) -> Callable[[Path, Path], PairCase]:  # fmt: skip
    """A dataset whose words at ``positions(size)`` change, each by one."""

    def build(base: Path, fresh: Path) -> PairCase:
        width = KINDS[kind].get_size()
        old = np.frombuffer(noise(size * width, 41), f"{'>' if kind.endswith('be') else '<'}u{width}")
        new = old.copy()
        at = np.asarray(positions(size), np.int64)
        new[at] += 1
        write(base, {"w": (kind, shape or (size,), old.tobytes())})
        write(fresh, {"w": (kind, shape or (size,), new.tobytes())})
        return PairCase(base, fresh, {"w": {int(k): (int(old[k]), int(new[k])) for k in at}})

    return build


def _gaps(*gaps: int) -> Callable[[int], Sequence[int]]:
    """Positions with these distances between them, beginning with a first gap of its own."""
    return lambda size: np.cumsum(gaps).tolist()


_EXPERT = (4, 6, 8)  # [experts, 2 * inner, hidden]
_FUSED = np.arange(4 * 6 * 8).reshape(_EXPERT)
PAIRS.update(
    {
        "change_none": _spread(lambda n: []),
        "change_one": _spread(lambda n: [n // 3]),
        "change_first_and_last": _spread(lambda n: [0, n - 1]),
        "change_one_long_run": _spread(lambda n: range(70_000, 140_000)),
        "change_every": _spread(lambda n: range(n), 70_000),
        "change_every_bool": _spread(lambda n: range(n), 3000, "u8"),
        "change_counter": _spread(lambda n: [0], 1, "i64"),
        "change_scattered": _spread(lambda n: np.flatnonzero(np.random.default_rng(7).random(n) < 0.03).tolist()),
        "change_scattered_f32": _spread(
            lambda n: np.flatnonzero(np.random.default_rng(8).random(n) < 0.01).tolist(), 50_000, "f32"
        ),
        "change_big_endian": _spread(lambda n: [1, 2, 500], 1000, "f32be"),
        "gaps_around_255": _spread(_gaps(254, 255, 256, 257, 1, 255, 256)),
        "gaps_around_65535": _spread(_gaps(65_534, 65_535, 65_536, 65_537, 1), 300_000),
        "gap_before_first_65536": _spread(_gaps(65_536)),
        "fused_later_expert_only": _spread(lambda n: _FUSED[3, 2:5].ravel().tolist(), 192, shape=_EXPERT),
        "grouped_qkv_second_group": _spread(
            lambda n: np.arange(192).reshape(2, 4, 3, 8)[1, 2].ravel().tolist(), 192, shape=(24, 8)
        ),
        "vocabulary_last_real_row": _spread(
            lambda n: np.arange(70 * 8).reshape(70, 8)[66].tolist(), 560, shape=(70, 8)
        ),
    }
)


def _sparse(kind: str, count: int, at: Sequence[int]) -> Callable[[Path, Path], PairCase]:
    """Past a 32-bit limit, with changes on both sides of it; a few blocks of disk each."""

    def build(base: Path, fresh: Path) -> PairCase:
        width = KINDS[kind].get_size()
        write_sparse(base, kind, count, {k: bytes(width) for k in at})
        write_sparse(fresh, kind, count, dict.fromkeys(at, b"\x01" * width))
        return PairCase(base, fresh, {"w": {k: (0, int.from_bytes(b"\x01" * width, "little")) for k in at}})

    return build


_E, _B = 1 << 31, 1 << 30
PAIRS.update({
    "sparse_past_2_31_elements": _sparse("u8", _E + 10, (0, _E - 1, _E, _E + 9)),
    "sparse_past_2_32_bytes": _sparse("f32", _B + 10, (0, _B // 2 - 1, _B // 2, _B - 1, _B, _B + 9)),
    "one_change_in_2_30": _sparse("bf16", 1 << 30, (777_777_777,)),
})  # fmt: skip


def _geometry(
    what: str,
    base: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    fresh: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    dtypes: Mapping[str, str] = {},
) -> Callable[[Path, Path], PairCase]:
    def build(old: Path, new: Path) -> PairCase:
        write(old, base)
        write(new, fresh)
        return PairCase(old, new, {}, what, dtypes)

    return build


_A, _W = ("bf16", (4,), noise(8, 51)), ("bf16", (4, 2), noise(16, 52))
PAIRS.update({
    "geometry_added": _geometry("added", {"a": _A}, {"a": _A, "w": _W}),
    "geometry_removed": _geometry("removed", {"a": _A, "w": _W}, {"a": _A}),
    "geometry_renamed": _geometry("renamed", {"a": _A, "w": _W}, {"a": _A, "v": _W}),
    "geometry_resized": _geometry("resized", {"w": _W}, {"w": ("bf16", (5, 2), noise(20, 53))}),
    "geometry_reshaped": _geometry("resized", {"w": _W}, {"w": ("bf16", (2, 4), _W[2])}),
    "geometry_retyped": _geometry("retyped", {"w": _W}, {"w": ("f32", (4, 2), noise(32, 54))}),
    "geometry_retyped_same_size": _geometry("retyped", {"w": _W}, {"w": ("f16", (4, 2), _W[2])}),
    "geometry_byte_order": _geometry("retyped", {"w": _W}, {"w": ("bf16be", (4, 2), _W[2])}),
    "dress_changed": _geometry("", {"w": ("raw2", (4, 2), _W[2])}, {"w": ("u16", (4, 2), _W[2])},
                               {"storage:raw2": "bf16", "storage:u16": "bf16"}),
})  # fmt: skip


def _tie(what: str, tied_first: bool) -> Callable[[Path, Path], PairCase]:
    """Hard-linked in one version, two equal copies in the other."""

    def build(base: Path, fresh: Path) -> PairCase:
        tied, apart = (base, fresh) if tied_first else (fresh, base)
        write(tied, {"embed": _W})
        with h5py.File(tied, "r+") as file:
            file["head"] = file["embed"]
        write(apart, {"embed": _W, "head": _W})
        return PairCase(base, fresh, {}, what)

    return build


PAIRS.update({"geometry_untied": _tie("untied", True), "geometry_tied": _tie("tied", False)})
