"""Ranks of one job: collectives and transfers that never hang. See :mod:`dcr_mpi.comm.api`."""

from .api import Comm, Solo, Transfer
from .launch import launched_size, run, start

__all__ = ["Comm", "Solo", "Transfer", "launched_size", "run", "start"]
