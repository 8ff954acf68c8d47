"""The door to numba: how kernels are compiled, and where their code is kept."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import extending, types

from ..errors import UsageError


def jit(function: Callable[..., Any]) -> Any:
    """numba.njit, with a cache that any number of processes may fill at once.

    numba numbers the files of a function's compiled code by what it read in the cache's index a moment before. Two
    processes that compile for two word widths at once take the same number, and from then on the code for one width
    is loaded for the other. A number drawn at random is nobody else's; a lost entry of the index only costs time.
    """
    try:
        compiled: Any = numba.njit(nogil=True, cache=True, boundscheck=False)(function)
    except RuntimeError:  # no directory for a cache that may be written (NUMBA_CACHE_DIR names one): compile every time
        return numba.njit(nogil=True, boundscheck=False)(function)
    files = compiled._cache._cache_file
    files._data_name = lambda _: files._data_name_pattern.format(number=secrets.randbits(63))
    return compiled


def cache_folder() -> str | None:
    """Where compiled kernels are kept; None where no place for them may be written."""
    path: str | None = jit(_nothing).stats.cache_path
    return path


def _nothing() -> None:
    """Whatever is compiled here is kept in the same folder."""


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise UsageError(
        "kernels: numba",
        found="NUMBA_DISABLE_JIT in the environment",
        expected="a compiler that may compile",
        remedy="unset it, or set kernels: numpy",
    )


inline: Any = numba.njit(inline="always")
intrinsic: Any = extending.intrinsic


# Three things that processors have and Python has no word for. Each is a few lines of LLVM's own language, which
# knows how to do it on every processor.

_BIT, _WORD, _DOUBLE = ir.IntType(1), ir.IntType(64), ir.IntType(128)
_LANES = 64


@intrinsic
def high_product(_context, a, b):  # type: ignore[no-untyped-def]
    """The upper 64 bits of the 128-bit product of two uint64."""

    def generate(_, builder, __, args):  # type: ignore[no-untyped-def]
        product = builder.mul(*(builder.zext(arg, _DOUBLE) for arg in args))
        return builder.trunc(builder.lshr(product, ir.Constant(_DOUBLE, 64)), _WORD)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def leading_zeros(_context, word):  # type: ignore[no-untyped-def]
    """Zero bits above the highest one of a uint64; 64 for 0."""

    def generate(_, builder, __, args):  # type: ignore[no-untyped-def]
        return builder.ctlz(args[0], ir.Constant(_BIT, 0))

    return types.uint64(types.uint64), generate


@intrinsic
def count_up_to(_context, numbers, first, bound):  # type: ignore[no-untyped-def]
    """How many of the 64 numbers from ``first`` on in an int32 array are at most ``bound``, as uint64.

    All are compared at once; none may lie outside the array.
    """

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        lanes = ir.VectorType(ir.IntType(32), _LANES)
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.bitcast(builder.gep(array.data, [args[1]]), lanes.as_pointer())
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0))
        every = builder.shuffle_vector(one, one, ir.Constant(lanes, [0] * _LANES))
        least = builder.icmp_signed("<=", builder.load(place, align=4), every)
        return builder.ctpop(builder.bitcast(least, _WORD))

    return types.uint64(numbers, types.uint64, types.int32), generate
