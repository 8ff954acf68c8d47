"""The command line. Errors become one message and the exit code of their class; only rank 0 prints results."""

import os

if "OPENBLAS_NUM_THREADS" not in os.environ:
    # OpenBLAS starts a thread per core as numpy is imported: on a node full of ranks, its cores squared; no act has a
    # use for them. Taken back at once, as hooks inherit the environment.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy  # noqa: F401

    del os.environ["OPENBLAS_NUM_THREADS"]

from .main import main, program

__all__ = ["main", "program"]
