"""The CUDA C of the kernels, compiled for this machine's CPU, behind the port that a GPU is behind: see ``shim.h``."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.kernels.device import DeviceFull, source

COMPILER = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
THREADS, ARGUMENTS = 128, 14
_GUARD, _FILL = 256, 0xCD  # bytes around every array, and what they and fresh arrays are filled with

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="NO C++ COMPILER: the CUDA kernels are not executed here")


class Memory:
    """An array on the device, between two guards."""

    def __init__(self, size: int, kind: str) -> None:
        word = np.dtype(kind)
        self._raw = np.full(size * word.itemsize + 2 * _GUARD, _FILL, np.uint8)
        self.view = self._raw[_GUARD : len(self._raw) - _GUARD].view(word)

    @property
    def nbytes(self) -> int:
        return self.view.nbytes

    def check(self) -> None:
        assert (self._raw[:_GUARD] == _FILL).all(), "a kernel wrote before an array"
        assert (self._raw[-_GUARD:] == _FILL).all(), "a kernel wrote past the end of an array"


class ShimDevice:
    """See :class:`dcr_mpi.kernels.device.Device`.

    Parameters
    ----------
    limit : int, optional
        Bytes of memory that the device has.
    text : callable
        The CUDA C for words of some bits.
    """

    def __init__(self, limit: int | None = None, text: Callable[[int], str] = source) -> None:
        self._limit, self._text, self._used = limit, text, 0
        self._seed = 1
        self.launched: list[str] = []
        self.full = 0

    def upload(self, array: np.ndarray) -> Memory:
        assert array.dtype.kind in "ui", f"{array.dtype} is not for a GPU"
        memory = self.empty(array.size, f"u{array.itemsize}")
        memory.view[...] = array.reshape(-1).view(memory.view.dtype)
        return memory

    def empty(self, size: int, kind: str) -> Memory:
        memory = Memory(size, kind)
        if self._limit is not None and self._used + memory.nbytes > self._limit:
            self.full += 1
            raise DeviceFull
        self._used += memory.nbytes
        weakref.finalize(memory, self._release, memory.nbytes)
        return memory

    def _release(self, size: int) -> None:
        self._used -= size

    def launch(self, kernel: str, bits: int, threads: int, *args: Any) -> None:
        self.launched.append(kernel)
        plain = [a.view.ctypes.data if isinstance(a, Memory) else int(a) for a in args]
        packed = (ctypes.c_uint64 * ARGUMENTS)(*plain)
        library = _library(self._text(bits))
        self._seed += 1
        library.shim_launch(
            ctypes.cast(getattr(library, kernel), ctypes.c_void_p),
            ctypes.c_uint(-(-threads // THREADS)),
            ctypes.c_uint(THREADS),
            packed,
            ctypes.c_uint64(self._seed),
        )
        for memory in args:
            if isinstance(memory, Memory):
                memory.check()

    def scan(self, array: Memory) -> Memory:
        out = self.empty(len(array.view), "u8")
        np.cumsum(array.view, out=out.view)
        return out

    def download(self, array: Memory) -> np.ndarray:
        array.check()
        return array.view.copy()

    def free(self) -> None:
        assert self._used == 0, "arrays of a call that failed are still held"


@lru_cache(maxsize=64)
def _library(text: str) -> ctypes.CDLL:
    assert COMPILER is not None
    header = (Path(__file__).parent / "shim.h").read_text()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.so"
        done = subprocess.run(
            [COMPILER, "-x", "c++", "-std=c++14", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(out), "-"],
            input=header + text, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done.stderr
        return ctypes.CDLL(str(out))
