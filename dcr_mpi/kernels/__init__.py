"""Kernels: the loops over every word, in sibling rooms with identical results. See :mod:`dcr_mpi.kernels.api`."""

from __future__ import annotations

from ..errors import UsageError
from .api import Kernels


def get_kernels(name: str = "numba", device: str = "auto") -> Kernels:
    """Choose a room: ``name`` is "numba" or "numpy" for the host, ``device`` is "auto", "cpu" or "cuda".

    Raises
    ------
    UsageError
        Unknown name, or a device that this build cannot drive.
    """
    if device == "cuda":
        raise UsageError("device", found="cuda", expected="auto or cpu", remedy="this version has no CUDA kernels yet")
    if name == "numpy":
        from .reference import ReferenceKernels

        return ReferenceKernels()
    if name == "numba":
        from .jit import JitKernels

        return JitKernels()
    raise UsageError("kernels", found=repr(name), expected="numba or numpy")
