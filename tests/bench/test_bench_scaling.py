"""The simulation of many ranks: it moves what a real relay moves, and what it says grows as it must. No timing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("simpy")

from bench.launcher import find_all
from bench.scaling import __main__ as program
from bench.scaling.formula import case
from bench.scaling.real import compare
from bench.scaling.simulate import Model, everybody, shards, simulate
from dcr_mpi.tree import depth

LAUNCHERS = {found.kind: found for found in find_all()}


def model(ranks: int, replicas: int, degree: int, parts: int = 24, sites: int = 1, window: int = 4) -> Model:
    sizes = [1000 + 7919 * k % 300_000 for k in range(parts)]
    members = everybody(ranks) if ranks == replicas else shards(parts, ranks, replicas)
    return Model(sizes, members, 3, ranks, sites, degree, window, 1e-3, 1e-3, 1e6, 1e6, 1e8, 1e-5)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", sorted(LAUNCHERS))
@pytest.mark.parametrize(
    ("ranks", "replicas", "degree", "window"), [(2, 1, 1, 1), (2, 2, 2, 4), (3, 3, 1, 2), (4, 2, 2, 4), (6, 6, 3, 4)]
)
def test_a_real_relay_moves_the_same(kind: str, ranks: int, replicas: int, degree: int, window: int) -> None:
    """Bytes fetched, received and sent, and transfers, of every rank."""
    simulated, real = compare(model(ranks, replicas, degree, window=window), LAUNCHERS[kind])
    assert simulated == real
    assert sum(r["fetched"] for r in real) == sum(model(ranks, replicas, degree).sizes)


@pytest.mark.parametrize(("ranks", "replicas", "degree"), [(1, 1, 2), (5, 1, 2), (16, 16, 2), (16, 16, 1), (48, 4, 4)])
def test_every_part_crosses_once_per_site_and_reaches_all_that_need_it(ranks: int, replicas: int, degree: int) -> None:
    asked = model(ranks, replicas, degree, sites=3)
    found = simulate(asked)
    payload = sum(asked.sizes)
    assert found.wide == [payload] * 3
    for site in found.tallies:
        assert sum(rank.fetched for rank in site) == payload
        assert sum(rank.sent for rank in site) == sum(rank.received for rank in site)
        owed = sum(
            asked.sizes[k] * len([m for m in asked.members(k) if m != k % ranks]) for k in range(len(asked.sizes))
        )
        assert sum(rank.received for rank in site) == owed
    assert found.most_in_hand <= asked.window
    assert 0 < found.link_busy <= 1 and 0 <= found.port_busy <= 1


def test_a_site_does_not_slow_another_where_the_store_serves_them() -> None:
    one, ten = (simulate(case(16, sites, 1, 2, 64).model()).seconds for sites in (1, 10))
    assert ten == pytest.approx(one)


def test_time_does_not_grow_with_the_ranks_of_one_model() -> None:
    seconds = [simulate(case(ranks, 1, 1, 2, 128).model()).seconds for ranks in (1, 2, 4, 16, 64)]
    assert seconds == sorted(seconds, reverse=True)


def test_a_replica_on_every_rank_costs_hops_not_ranks() -> None:
    """All needs the same parts: a rank's work stays what it was, the tree gets deeper by a hop per doubling."""
    cases = {ranks: case(ranks, 1, ranks, 2, 32, link=20e6) for ranks in (2, 8, 32, 128)}
    seconds = {ranks: simulate(c.model()).seconds for ranks, c in cases.items()}
    hop = 2 * cases[2].sent / cases[2].parts / cases[2].scenario.cluster_link + 1e-3
    for ranks, took in seconds.items():
        assert took <= seconds[2] + 3 * hop * depth(ranks, 2)


@pytest.mark.parametrize(("ranks", "replicas", "degree"), [(1, 1, 2), (8, 1, 2), (64, 1, 2), (16, 16, 2), (64, 8, 4)])
def test_the_formula_says_about_the_same(ranks: int, replicas: int, degree: int) -> None:
    here = case(ranks, 1, replicas, degree, 128, window=8)
    assert here.seconds() == pytest.approx(simulate(here.model()).seconds, rel=0.25)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_the_quick_run_writes_what_machines_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.scaling", "--quick", "--out", str(tmp_path / "scaling.json")])
    assert program.main() == 0
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert all(row["crossings"] == 1 for row in found["rows"])
    assert found["real"] and all(row["same"] for row in found["real"])
    assert (tmp_path / "scaling.svg").read_text().startswith("<svg")
