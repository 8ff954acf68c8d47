"""The first run on several nodes: no kernel is compiled yet, and all ranks do it at once into one shared cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.slurmcluster import Cluster
from tests.slurm.places import Places, needs_openmpi

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(600), needs_openmpi]


def test_a_cold_cache_of_compiled_kernels(train: Cluster, rollout: Cluster, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    places = Places(tmp_path, kernels="numba", env={"NUMBA_CACHE_DIR": str(cache)})
    places.ends(train, places.submit(train, "train", "encode", str(places.synth(1))), 300)
    filled = sum(path.suffix == ".nbc" for path in cache.rglob("*"))
    assert filled, "the ranks compiled into that cache"
    places.ends(rollout, places.submit(rollout, "rollout", "refit"), 300)
    places.here("train", "commit")
    places.ends(rollout, places.submit(rollout, "rollout", "apply"), 300)
    assert places.exact(1)
