"""Measuring this machine for :mod:`dcr_mpi.plan`, by the real kernels, files, acts and store, in some seconds."""

from .run import Stored, calibrate

__all__ = ["Stored", "calibrate"]
