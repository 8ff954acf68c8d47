"""Kernels: the loops over every word, in sibling rooms with identical results. See :mod:`dcr_mpi.kernels.api`."""

from __future__ import annotations

from ..errors import UsageError
from .api import Kernels


def get_kernels(name: str = "numba", device: str = "cpu") -> Kernels:
    """Choose a room: ``name`` is "numba" or "numpy" for the host, ``device`` is "auto", "cpu" or "cuda".

    "auto" takes a GPU where there is one that works, and numba's host kernels otherwise; ``kernels.device`` says which
    it was. The kernels in numpy are for the host only, and "auto" leaves them there.

    Raises
    ------
    UsageError
        Unknown name or device; "cuda" where there is none, saying what is missing.
    """
    if name not in ("numba", "numpy"):
        raise UsageError("kernels", found=repr(name), expected="numba or numpy")
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError("device", found=repr(device), expected="auto, cpu or cuda")
    if name == "numpy":
        if device == "cuda":
            raise UsageError(
                "device: cuda", found="kernels: numpy", expected="kernels: numba", remedy="set one or the other"
            )
        from .reference import ReferenceKernels

        return ReferenceKernels()
    if device != "cpu":
        from .cuda import open_device
        from .device import DeviceKernels

        try:
            return DeviceKernels(open_device())
        except UsageError:
            if device == "cuda":
                raise
    from .jit import JitKernels

    return JitKernels()
