"""The kernels on a real GPU: bytes of the numpy room. Skipped, saying so, where cupy sees none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pytest

from dcr_mpi.errors import UsageError
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels
from tests.gpu.rooms import CHECKS, every_way, large
from tests.strategies import DTYPES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@lru_cache(maxsize=1)
def _open() -> Kernels | str:
    try:
        return get_kernels(device="cuda")
    except UsageError as error:
        return f"NO GPU: {error.found}"


@pytest.fixture
def kernels() -> Kernels:
    found = _open()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def pool(kernels: Kernels) -> Iterator[Any]:
    cupy = pytest.importorskip("cupy")
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    yield pool
    pool.set_limit(size=0)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", DTYPES)
def test_bytes_of_the_numpy_room(check: str, name: str, kernels: Kernels) -> None:
    CHECKS[check](kernels, every_way(name))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("words", [(1 << 23) - 1, 1 << 23, (1 << 23) + 1])
def test_around_8_mi_words(check: str, words: int, kernels: Kernels) -> None:
    CHECKS[check](kernels, large(words))


@pytest.mark.parametrize("check", CHECKS)
def test_everything_changed(check: str, kernels: Kernels) -> None:
    CHECKS[check](kernels, large(1 << 20, rate=1.1))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("mib", [1, 12, 24, 48])
def test_a_full_device(check: str, mib: int, kernels: Kernels, pool: Any) -> None:
    """With memory for all of a bucket of 16 MiB, for a half, for nothing."""
    pool.set_limit(size=mib << 20)
    CHECKS[check](kernels, large(1 << 23))


def test_several_threads(kernels: Kernels) -> None:
    cases = [large(1 << 18, seed=k) for k in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for check in CHECKS.values():
            list(threads.map(lambda case, check=check: check(kernels, case), cases))


def test_receipts_say_so(kernels: Kernels) -> None:
    assert (kernels.name, kernels.device, get_kernels(device="auto").device) == ("cuda", "cuda", "cuda")
