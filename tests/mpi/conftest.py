"""What tests of several jobs at once share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.mpi.staying import Staying
from tests.world import World


@pytest.fixture
def stay() -> Iterator[Callable[..., Staying]]:
    made: list[Staying] = []

    def start(world: World, ranks: int, *arguments: str) -> Staying:
        made.append(Staying(world, ranks, *arguments))
        return made[-1]

    yield start
    for job in made:
        job.close()
