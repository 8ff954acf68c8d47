"""Measuring this machine for :mod:`dcr_mpi.plan`, by the real kernels, files, acts and store, in some seconds."""

from .coding import Sample
from .run import Stored, calibrate

__all__ = ["Sample", "Stored", "calibrate"]
