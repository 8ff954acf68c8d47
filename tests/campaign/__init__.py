"""A campaign against the product's promises: kills, errors, lost power, hostile bytes; see ``docs/reliability.md``.

``python -m tests.campaign [--quick]`` runs every section and writes a report. A section is a room with a function
``run(arena, budget, report)``; the list of them is in ``__main__``.
"""

import os

# This process forks for every point, so it must stay of one thread: numpy's library would start more when loaded.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
