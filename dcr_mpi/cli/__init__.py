"""The command line. Errors become one message and the exit code of their class; only rank 0 prints results."""

from .main import main, program

__all__ = ["main", "program"]
