"""Memory is bounded by a few buckets and parts, not by the tensor: a tensor past 2^31 words and 2^32 bytes.

Every act runs in its own process, whose peak resident memory is read afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.world import LAUNCHERS, World

PAST = 3 * ((1 << 31) // 3 + (1 << 19))  # words of uint16
LIMIT_MIB = 600
EDGES = [0, 1, 255, 256, 257, 65535, 65536, 65793, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 31) + 65537]
# Not ru_maxrss: that begins with what the process of the tests had, from which this one was forked.
MEASURE = """
import json, sys
from pathlib import Path
from dcr_mpi.cli import main
code = main(sys.argv[1:])
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(json.dumps({"peak_mib": int(peak) / 1024}))
sys.exit(code)
"""


def _sparse(folder: Path, words: int, changes: dict[int, int]) -> Path:
    """A shard with one huge dataset of zeros that takes no disk, and a few words set."""
    folder.mkdir(parents=True)
    with h5py.File(folder / "one.h5", "w", libver="v110") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        made = h5py.h5d.create(file.id, b"huge", h5py.h5t.STD_U16LE, h5py.h5s.create_simple((3, words // 3)), plist)
        offset = made.get_offset()
        file["small"] = np.arange(5, dtype=np.int64)
    with (folder / "one.h5").open("r+b") as raw:
        for index, word in changes.items():
            raw.seek(offset + 2 * index)
            raw.write(word.to_bytes(2, "little"))
    return folder


def _run(world: World, *arguments: str) -> float:
    """Peak memory of a command in MiB."""
    command = [sys.executable, "-c", MEASURE, *arguments, "--config", str(world.config)]
    done = subprocess.run(command, env=world.environment(), text=True, capture_output=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout.strip().splitlines()[-1])["peak_mib"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [3 << 28, pytest.param(PAST, marks=pytest.mark.slow)], ids=["1.5 GiB", "past 4 GiB"])
def test_a_huge_tensor(tmp_path: Path, words: int) -> None:
    edges = [*(index for index in EDGES if index < words), words - 1]
    launcher = LAUNCHERS[sorted(LAUNCHERS)[0]]
    (tmp_path / "warm").mkdir()
    # The kernels are compiled here: that takes memory of its own.
    warm = World(tmp_path / "warm", launcher, kernels="numba")
    warm.begin()
    warm.encode(1)
    for act in (("refit", "--site", "rollout"), ("commit",), ("apply", "--site", "rollout")):
        warm.dcr(1, *act)
    world = World(tmp_path, launcher)
    world.config.write_text(
        "policy: huge\nstore: {url: store}\ntrainer: {state: state, sites: [site]}\nsites: {site: {replica: replica}}\n"
        "codec: {bucket_mib: 16, part_mib: 64}\nevents: {progress_s: 0}\n"
    )
    base = _sparse(tmp_path / "base", words, {7: 1})
    new = _sparse(tmp_path / "new", words, {7: 1, **{index: 0x3F80 + k for k, index in enumerate(edges)}})
    peaks = {"init": _run(world, "init", "--checkpoint", str(base), "--no-anchor")}
    peaks["create"] = _run(world, "init", "--site", "site", "--from", str(base))
    peaks["encode"] = _run(world, "encode", str(new))
    peaks["refit"] = _run(world, "refit", "--site", "site")
    world.dcr(1, "commit")
    peaks["apply"] = _run(world, "apply", "--site", "site")
    peaks["verify"] = _run(world, "verify", "--site", "site")
    assert max(peaks.values()) < LIMIT_MIB, peaks
    with h5py.File(tmp_path / "replica/one.h5") as file:
        offset = file["huge"].id.get_offset()
    with (tmp_path / "replica/one.h5").open("rb") as raw:
        for k, index in enumerate(edges):
            raw.seek(offset + 2 * index)
            assert int.from_bytes(raw.read(2), "little") == 0x3F80 + k, index
    payload = sum(p.stat().st_size for p in (tmp_path / "store/huge/versions/000001/parts").iterdir())
    assert payload < 64 * 1024, "a bitmap bit and a span digest, not a digest for every unchanged block"
