"""Ranks that are killed, stopped, raise or exit, phase by phase; ``tests.campaign.phases`` has all the cases."""

from __future__ import annotations

import shutil

import pytest

from tests.mpi.rank_faults import ACTS, HOWS, Bench, Case, cases, try_case
from tests.world import LAUNCHERS

pytestmark = [pytest.mark.mpi, pytest.mark.faults, pytest.mark.timeout(300)]
FEW = [
    Case("refit", "fetch", 1, "kill"),
    Case("refit", "send", 2, "error"),
    Case("refit", "receive", 1, "stop"),
    Case("refit", "journal", 0, "bug"),
    Case("refit", "journal", 1, "error"),
    Case("refit", "agree", 1, "_exit"),
    Case("encode", "compare", 2, "exit"),
    Case("encode", "upload", 1, "error"),
    Case("encode", "seal", 0, "kill"),
    Case("apply", "before", 2, "stop"),
    Case("apply", "midway", 1, "kill"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("ranks"), LAUNCHERS[sorted(LAUNCHERS)[0]])


# A stopped rank is known by its silence alone, and a busy machine is silent too: not among the quick ones.
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c.how == "stop" else []) for c in FEW], ids=str
)
def test_a_rank_fails(bench: Bench, case: Case) -> None:
    tripped, wrong = try_case(bench, case)
    assert tripped, "the rank never came to this phase"
    assert not wrong, "\n".join(wrong)


def test_every_phase_and_way_is_among_them() -> None:
    assert {case.phase for case in FEW} == {phase for phases in ACTS.values() for phase in phases}
    assert {case.how for case in FEW} == set(HOWS)
    assert set(FEW) <= set(cases(3))


def test_what_is_missing_is_counted(bench: Bench) -> None:
    """The measure itself: all of it without journals, nothing with all of them, something with a torn one."""
    payload = sum(p.stat().st_size for p in (bench.refit.path / "store/test/versions/000001/parts").iterdir())
    assert bench.missing(bench.refit) == payload
    assert bench.missing(bench.apply) == 0
    world = bench.copy(bench.apply, "counted")
    (only,) = world.replica().sets(1)
    torn = only / "000001.journal"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert 0 < bench.missing(world) < payload
    shutil.rmtree(world.path)
