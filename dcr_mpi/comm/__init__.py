"""Ranks of one job: collectives and transfers that never hang. See :mod:`dcr_mpi.comm.api`."""

from .api import Comm, Solo, Transfer
from .launch import join, launched_rank, launched_size, run, start
from .mpi import Library, library
from .stopping import listen

__all__ = [
    "Comm",
    "Library",
    "Solo",
    "Transfer",
    "join",
    "launched_rank",
    "launched_size",
    "library",
    "listen",
    "run",
    "start",
]
