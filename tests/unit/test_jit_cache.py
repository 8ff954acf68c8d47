"""The cache of compiled kernels may be filled by any number of processes at once (every rank of a first run)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Both have read the index before either writes it; "second" writes index and code between the two writes of "first".
RACER = """
import sys, time
from pathlib import Path
import numpy as np
from numba.core.caching import IndexDataCacheFile as Cache
from dcr_mpi.kernels import jit

folder, me, width = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
load, save_index, save_data = Cache._load_index, Cache._save_index, Cache._save_data
saving = False

def mark(what):
    (folder / what).touch()

def wait(what):
    end = time.monotonic() + 60
    while not (folder / what).exists():
        assert time.monotonic() < end, what
        time.sleep(0.005)

def patched_save(self, key, data, save=Cache.save):
    global saving
    saving = True
    save(self, key, data)
    saving = False

def patched_load(self):
    found = load(self)
    if saving:
        mark(me + " has read")
        wait(("first" if me == "second" else "second") + " has read")
    return found

def patched_save_index(self, overloads):
    if me == "second":
        wait("first has written the index")
    save_index(self, overloads)
    mark(me + " has written the index")

def patched_save_data(self, name, data):
    if me == "first":
        wait("second has written the code")
    save_data(self, name, data)
    mark(me + " has written the code")

Cache.save, Cache._load_index = patched_save, patched_load
Cache._save_index, Cache._save_data = patched_save_index, patched_save_data
one = np.ones(1, np.int64)
jit._gather(np.arange(4, dtype=width), one, one, np.zeros(1, np.uint32), np.empty(1, width))
"""

READER = """
import sys
import numpy as np
from dcr_mpi.kernels import jit

for width in sys.argv[1:]:
    one, out = np.ones(1, np.int64), np.empty(1, width)
    jit._gather(np.arange(4, dtype=width) + np.array(7, width), one, one, np.full(1, 2, np.uint32), out)
    assert out[0] == 10, (width, out)
print("right")
"""


def test_code_for_one_width_is_never_loaded_for_another(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path), me, width], cwd=ROOT, env=env)
        for me, width in (("first", "u2"), ("second", "u8"))
    ]
    assert [racer.wait(90) for racer in racers] == [0, 0]
    for widths in (["u8"], ["u2"], ["u8", "u2", "u4"], ["u2", "u8"]):
        done = subprocess.run(
            [sys.executable, "-c", READER, *widths], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert done.stdout == "right\n", done.stderr


def test_without_a_compiler_the_choice_is_refused() -> None:
    """The kernels have instructions that only compiled code can use."""
    code = "from dcr_mpi.kernels import get_kernels; print(get_kernels('numpy').name); get_kernels('numba')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "numpy\n"
    assert "UsageError: kernels: numba: found NUMBA_DISABLE_JIT" in done.stderr
