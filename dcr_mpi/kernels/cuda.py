"""The door to cupy: a real GPU behind the port of :mod:`.device`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import ResourceError, UsageError
from .device import Device, DeviceFull, source

_THREADS = 128  # of a launch block
_NO_MEMORY = 2  # cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID")


class CupyDevice:
    """See :class:`dcr_mpi.kernels.device.Device`. Safe from several threads, which share the device's one stream."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy, self._number = cupy, number
        self._kernel = lru_cache(maxsize=None)(self._compile)

    @property
    def name(self) -> str:
        return self._cupy.cuda.runtime.getDeviceProperties(self._number)["name"].decode()

    def upload(self, array: np.ndarray) -> Any:
        unsigned = np.ascontiguousarray(array).view(f"u{array.itemsize}") if array.dtype.kind == "i" else array
        if unsigned.dtype.kind != "u":
            raise TypeError(f"{array.dtype} is not for a GPU")
        with self._using():
            return self._cupy.asarray(np.ascontiguousarray(unsigned))

    def empty(self, size: int, kind: str) -> Any:
        with self._using():
            return self._cupy.empty(size, kind)

    def launch(self, kernel: str, bits: int, threads: int, *args: Any) -> None:
        if threads:
            with self._using():
                grid = -(-threads // _THREADS)
                plain = tuple(np.uint64(a) if isinstance(a, int) else a for a in args)
                self._kernel(kernel, bits)((grid,), (_THREADS,), plain)

    def scan(self, array: Any) -> Any:
        with self._using():
            return self._cupy.cumsum(array, dtype=np.uint64) if array.size else array

    def download(self, array: Any) -> np.ndarray:
        with self._using():
            return self._cupy.asnumpy(array)

    def free(self) -> None:
        with self._using():
            self._cupy.get_default_memory_pool().free_all_blocks()

    def _compile(self, kernel: str, bits: int) -> Callable[..., None]:
        module = self._cupy.RawModule(code=source(bits), options=("--std=c++14",), backend="nvrtc")
        return module.get_function(kernel)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """On this device, whatever thread it is; the library's errors become ours."""
        cuda = self._cupy.cuda
        try:
            with cuda.Device(self._number):
                yield
        except cuda.memory.OutOfMemoryError:
            raise DeviceFull from None
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            if error.status == _NO_MEMORY:
                raise DeviceFull from None
            raise ResourceError(
                f"GPU {self._number}",
                found=str(error),
                expected="a device that works",
                remedy="run again; if it stays, set device: cpu and have the GPU looked at",
            ) from error


def open_device() -> Device:
    """The GPU of this rank: of those that it sees, the one of its number on this node.

    Raises
    ------
    UsageError
        There is none, or cupy is missing or does not work; says which.
    """
    try:
        import cupy
    except ImportError as error:
        raise _missing(f"no cupy ({error})", "install dcr-mpi[cuda]") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _missing(f"no GPU ({error})", "run on a node with an NVIDIA GPU and its driver") from None
    if not count:
        raise _missing("no GPU", "ask the scheduler for one")
    device = CupyDevice(cupy, _local_rank() % count)
    try:
        _check(device)
    except Exception as error:  # whatever it is, it is the GPU that does not work, and device: auto goes on without
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise _missing(f"{device.name}, on which a first kernel failed ({text})", "see docs/gpu.md") from error
    return device


def _check(device: CupyDevice) -> None:
    """Compile and run what calls need: a kernel of ours, and the library's prefix sums."""
    table = device.upload(np.array([0, 1, 0, 3], np.uint64))
    words = [device.upload(np.array(w, np.uint16)) for w in ([7, 8, 9], [7, 0, 0])]
    out = device.empty(1, "u8")
    device.launch("count_changes", 16, 1, *words, table, 1, 1, out)
    if device.download(device.scan(out)).tolist() != [2]:
        raise RuntimeError("a wrong result")


def _missing(found: str, remedy: str) -> UsageError:
    return UsageError(
        "device: cuda", found=found, expected="an NVIDIA GPU and cupy", remedy=f"{remedy}, or device: cpu"
    )


def _local_rank() -> int:
    """This rank's number on its node, as launchers tell it; 0 where none does."""
    found = next((os.environ[name] for name in _LOCAL_RANK if name in os.environ), "0")
    return int(found) if found.isdecimal() else 0
