"""``python -m bench [--quick]``: every benchmark that needs nothing but dcr-mpi itself."""

from __future__ import annotations

import sys

from bench.codec.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
