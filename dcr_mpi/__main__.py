"""``python -m dcr_mpi``: the same as the ``dcr`` command."""

from .cli import program

program()
