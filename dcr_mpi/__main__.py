"""``python -m dcr_mpi``: the same as the ``dcr`` command."""

import sys

from .cli import main

sys.exit(main())
