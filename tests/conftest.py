"""What every test shares: the header that says what runs, the ``--run-slow`` option, hypothesis profiles."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from hypothesis import settings

from bench.launcher import find_all
from bench.slurmcluster import Cluster, missing

# No deadlines: the first example compiles kernels, and CI machines stall. ci is thorough and repeatable, so that a
# failure there is a failure here; dev is quick and draws new examples every time.
settings.register_profile("ci", deadline=None, max_examples=75, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=40)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests that take minutes, too")


def pytest_report_header() -> list[str]:
    names = ("numpy", "numba", "h5py", "mpi4py", "boto3", "zstandard", "xxhash", "hypothesis")
    launchers = ", ".join(f"{found.kind} ({found.path})" for found in find_all()) or "NONE: the MPI tests are skipped"
    return [
        f"Slurm: {missing() or 'real clusters, started by the tests'}",
        f"python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in names),
        f"launchers: {launchers}; cores: {os.cpu_count()}; user: {os.geteuid()}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--run-slow"):
        skip = pytest.mark.skip(reason="slow: runs with --run-slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def _clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("slurm")
    with Cluster(root / "train", "train") as train, Cluster(root / "rollout", "rollout", first_job=100_001) as rollout:
        yield train, rollout


@pytest.fixture
def train(_clusters: tuple[Cluster, Cluster]) -> Iterator[Cluster]:
    """A real Slurm cluster of two nodes, without jobs; it lives as long as this process of tests."""
    yield _clusters[0]
    _clusters[0].clear()


@pytest.fixture
def rollout(_clusters: tuple[Cluster, Cluster]) -> Iterator[Cluster]:
    """Another one, which knows nothing of the first."""
    yield _clusters[1]
    _clusters[1].clear()
