"""The formulas of dcr plan: they agree with what the codec does, and keep the laws that any refit keeps."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.codec.floors import floors
from dcr_mpi.calibrate.data import DataSet, adam, uniform
from dcr_mpi.calibrate.world import World
from dcr_mpi.codec import Scheme
from dcr_mpi.errors import UsageError
from dcr_mpi.jsonable import dumps
from dcr_mpi.kernels import get_kernels
from dcr_mpi.plan import (
    DEFAULTS,
    DEGREES,
    MIB,
    Choice,
    Plan,
    Scenario,
    Share,
    best,
    bits_per_change,
    changes,
    paper_rows,
    payload,
    plan,
    read_speeds,
    stream,
    through,
)
from dcr_mpi.plan.refit import look_s, looks

SIZE = 8 << 20
FRACTIONS = st.floats(1e-4, 0.3)
RATES = st.floats(1e6, 1e12)
RANKS = st.sampled_from([1, 2, 3, 8, 64, 1000])
CHOICES = st.builds(
    Choice, st.sampled_from(["class", "plain"]), st.sampled_from([1.0 * MIB, 64.0 * MIB]), st.integers(1, 8)
)


def share(fraction: float, words: float = 1e10, law: Any = "adam", kind: str = "bf16") -> Share:
    return Share(changes(kind, fraction, law), words)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    ranks = draw(RANKS)
    return Scenario(
        (share(0.03, draw(st.sampled_from([1e6, 1e9, 1e11]))),),
        draw(RATES),
        draw(RATES),
        draw(RANKS),
        ranks,
        sites=draw(st.integers(1, 4)),
        replicas=draw(st.sampled_from([r for r in (1, 2, 8) if r <= ranks])),
        latency=draw(st.sampled_from([0.0, 0.05])),
        transport=draw(st.sampled_from(["store", "direct"])),
        mode=draw(st.sampled_from(["staying", "jobs"])),
        cores=draw(st.sampled_from([None, 2, 64])),
    )


@pytest.mark.parametrize("fraction", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f8e4m3", "f8e5m2"])
def test_the_law_has_the_entropies_of_weights_drawn_from_it(kind: str, fraction: float) -> None:
    data = adam(kind, fraction, SIZE)
    law, seen = changes(kind, data.changed / data.words, "adam"), floors(data, get_kernels())
    assert law.position_bits == pytest.approx(seen.positions_by_exponent, rel=0.02)
    assert law.value_bits == pytest.approx(seen.values_by_exponent, rel=0.05)
    assert law.plain_position_bits == pytest.approx(seen.positions, rel=0.01)


def test_the_uniform_law_too() -> None:
    data = uniform(0.03, SIZE)
    law, seen = changes("bf16", data.changed / data.words, "uniform"), floors(data, get_kernels())
    assert law.class_bits == pytest.approx(seen.by_exponent, rel=0.01)
    assert law.value_bits == 1


@pytest.mark.parametrize("positions", ["class", "plain", "dense"])
@pytest.mark.parametrize(
    "data", [adam("bf16", 0.01, SIZE), adam("bf16", 0.05, SIZE), adam("f32", 0.03, SIZE)], ids=lambda d: d.name
)
def test_the_payload_is_that_of_the_codec(data: DataSet, positions: Any, tmp_path: Path) -> None:
    made = World(data, get_kernels(), tmp_path).encode(Scheme(positions))
    law = changes(data.dtype, data.changed / data.words, "adam")
    expected = payload([Share(law, data.words)], positions, 64.0 * MIB, 32.0 * MIB, 1 << 18)
    assert expected == pytest.approx(sum(len(p.data) for p in made), rel=0.03)


@pytest.mark.parametrize("law", ["adam", "uniform"])
@pytest.mark.parametrize("kind", ["bf16", "f32", "i64", "f8e4m3"])
def test_chances_are_chances(kind: str, law: Any) -> None:
    for fraction in (1e-5, 0.02, 0.5, 0.98):
        found = changes(kind, fraction, law)
        assert found.share.sum() == pytest.approx(1)
        assert float(found.share @ found.moved) == pytest.approx(fraction, rel=1e-6)
        assert ((found.moved >= 0) & (found.moved <= 1 + 1e-12)).all()
        assert float(found.step_shares.sum()) == pytest.approx(1, abs=1e-6)
        assert float(found.by_spread.mean()) == pytest.approx(fraction, rel=1e-6)


@pytest.mark.parametrize("positions", ["class", "plain"])
@pytest.mark.parametrize("kind", ["bf16", "f8e4m3"])
def test_sizes_grow_with_changes(positions: Any, kind: str) -> None:
    rates = (0.1, 1, 3, 10, 30, 60, 90, 99, 99.9, 99.99, 99.999)
    sizes = [payload([share(f / 100, kind=kind)], positions, 64.0 * MIB, 32.0 * MIB, 1 << 18) for f in rates]
    assert sizes == sorted(sizes)


def test_sizes_never_grow_past_whole_blocks() -> None:
    sizes = [payload([share(f / 100)], "class", 64.0 * MIB, 32.0 * MIB, 1 << 18) for f in (0.1, 1, 3, 10, 30, 60, 90)]
    assert sizes == sorted(sizes)
    whole = payload([share(0.9)], "dense", 64.0 * MIB, 32.0 * MIB, 1 << 18)
    assert sizes[-1] <= whole < share(0.9).dense_bytes
    assert bits_per_change(share(0.03), "class") < bits_per_change(share(0.03), "plain")


@given(scenarios(), CHOICES)
def test_what_stages_add_is_the_whole_and_nothing_is_negative(scenario: Scenario, choice: Choice) -> None:
    found = plan(scenario, DEFAULTS, choice)
    assert all(stage.adds_s >= 0 and stage.busy_s >= 0 and math.isfinite(stage.busy_s) for stage in found.stages)
    assert found.total_s == pytest.approx(sum(stage.adds_s for stage in found.stages))
    assert [stage.name for stage in found.stages] == [
        "start", "encode", "upload", "fetch", "relay", "prepare", "decide", "apply",
    ]  # fmt: skip
    # No stage is done sooner in company than alone, and the payload is no faster than its link.
    assert found.total_s >= max(stage.busy_s for stage in found.stages if stage.name in ("encode", "upload", "relay"))
    assert found.total_s >= found.transport_s * (1 - 1e-9)
    assert found.pause_s == found.stages[-1].adds_s


@given(scenarios(), CHOICES)
def test_bytes_add_up(scenario: Scenario, choice: Choice) -> None:
    found = plan(scenario, DEFAULTS, choice)
    sizes = {stage.name: stage.bytes for stage in found.stages}
    assert found.payload_bytes == payload(
        scenario.shares, choice.positions, choice.part, scenario.bucket, scenario.block
    )
    assert sizes["encode"] == found.dense_bytes
    assert sizes["fetch"] == pytest.approx(found.payload_bytes * scenario.sites), "once per site"
    assert sizes["upload"] == pytest.approx(
        found.payload_bytes * (scenario.sites if scenario.transport == "direct" else 1)
    )
    copies = scenario.replicas - scenario.replicas / scenario.site_ranks
    assert sizes["relay"] == pytest.approx(found.payload_bytes * copies * scenario.sites)


@given(scenarios(), CHOICES, FRACTIONS, st.floats(1.01, 3))
def test_more_changes_are_never_faster(scenario: Scenario, choice: Choice, fraction: float, more: float) -> None:
    words = scenario.shares[0].words
    few, many = (
        plan(dataclasses.replace(scenario, shares=(share(f, words),)), DEFAULTS, choice)
        for f in (fraction, min(0.5, fraction * more))
    )
    assert few.payload_bytes <= many.payload_bytes
    assert few.total_s <= many.total_s * (1 + 1e-9)


@given(scenarios(), CHOICES, st.sampled_from(["link", "site_link", "cluster_link"]), st.floats(1.1, 100))
def test_a_better_link_is_never_slower(scenario: Scenario, choice: Choice, name: str, factor: float) -> None:
    better = dataclasses.replace(scenario, **{name: getattr(scenario, name) * factor})
    assert plan(better, DEFAULTS, choice).total_s <= plan(scenario, DEFAULTS, choice).total_s * (1 + 1e-9)


@given(scenarios(), CHOICES)
def test_links_without_end_leave_the_work(scenario: Scenario, choice: Choice) -> None:
    """No bytes, no requests, no looks: what is left is coding and disks."""
    speeds = dataclasses.replace(DEFAULTS, put_s=0.0, get_s=0.0)
    free = dataclasses.replace(scenario, link=1e30, site_link=1e30, cluster_link=1e30, latency=0.0, cluster_latency=0.0)
    found = plan(free, speeds, choice)
    assert found.bottleneck in ("encode", "cores", "fetch"), "a window that is full of parts to decode is fetch's beat"
    assert found.transport_share < 1e-9
    steps = stream(free, speeds, choice, found.parts, found.payload_bytes)
    assert sum(step.beat for step in steps if step.name in ("upload", "relay")) < 1e-9


def test_a_slow_link_leaves_nothing_but_bytes() -> None:
    found = plan(Scenario((share(0.03),), 1e5, 1e5, 8, 8), DEFAULTS, Choice("class", 16.0 * MIB, 2))
    assert found.bottleneck in ("upload", "fetch")
    assert found.transport_share > 0.98
    assert found.speedup == pytest.approx(found.dense_bytes / found.payload_bytes, rel=0.02)


@given(scenarios(), st.sampled_from(["class", "plain"]))
def test_one_part_overlaps_with_nothing(scenario: Scenario, positions: Any) -> None:
    one = Choice(positions, scenario.dense_bytes, 2)
    found = plan(dataclasses.replace(scenario, cores=None), DEFAULTS, one)
    assert found.parts == 1
    for stage in found.stages[1:-2]:
        assert stage.adds_s == pytest.approx(stage.busy_s), stage.name


def test_parts_overlap() -> None:
    """Many parts take about as long as the slowest stage, not as all of them."""
    scenario = Scenario((share(0.03, 1e11),), 330e6, 330e6, 64, 64)
    steps = stream(scenario, DEFAULTS, Choice("class", 64.0 * MIB, 2), 3000, 2.2e9)
    look = DEFAULTS.get_s  # the one that finds the last part
    assert through(steps, 3000) - look < 1.6 * max(step.alone(3000) for step in steps)
    one = stream(scenario, DEFAULTS, Choice("class", 2e11, 2), 1, 2.2e9)
    assert through(one, 1) == pytest.approx(sum(step.way + step.tail for step in one))


def test_the_best_choice_is_the_shortest_of_all() -> None:
    scenario = Scenario((share(0.03, 1e11),), 33e6, 33e6, 64, 64, replicas=8, latency=0.03)
    found = best(scenario, DEFAULTS)
    for positions in ("class", "plain"):
        for part in (1, 8, 64, 256):
            for degree in DEGREES:
                tried: Plan = plan(scenario, DEFAULTS, Choice(positions, part * 1.0 * MIB, degree))
                assert found.total_s <= tried.total_s * (1 + 1e-9)
    fast = dataclasses.replace(scenario, link=1e12, site_link=1e12)
    assert (found.choice.positions, best(fast, DEFAULTS).choice.positions) == ("class", "plain"), "time, not size"


def test_looks_grow_with_the_wait_up_to_the_longest() -> None:
    scenario = Scenario((share(0.03),), 1e8, 1e8, poll=(0.05, 2.0))
    found = [look_s(scenario, waited) for waited in (0.0, 0.1, 1.0, 10.0, 1000.0)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0.025, 1.0)


def test_one_part_goes_no_faster_than_one_stream() -> None:
    slow = dataclasses.replace(DEFAULTS, put_rate=1e6, get_rate=1e6)
    found = plan(Scenario((share(0.03, 1e7),), 1e12, 1e12, 64, 64), slow, Choice("class", 64.0 * MIB, 2))
    assert found.parts == 1
    for stage in found.stages:
        if stage.name in ("upload", "fetch"):
            assert stage.busy_s >= found.payload_bytes / 1e6


@pytest.mark.parametrize("waited", [0.0, 0.05, 0.3, 2.0, 4.0, 60.0])
@pytest.mark.parametrize("poll", [(0.05, 2.0), (0.01, 0.1), (0.1, 0.1)])
def test_looks_that_find_nothing_are_as_many_as_their_pauses_leave_room_for(
    poll: tuple[float, float], waited: float
) -> None:
    """Beside the loop of dcr_mpi.waiting, counted."""
    counted, at, pause = 0, poll[0], poll[0]
    while at <= waited:
        counted, pause = counted + 1, min(pause * 1.5, poll[1])
        at += pause
    scenario = Scenario((share(0.03),), 1e8, 1e8, poll=poll)
    assert looks(dataclasses.replace(scenario, poll=(0.0, 0.0)), waited) == pytest.approx(1000 * waited)
    assert abs(looks(scenario, waited) - counted) <= 1 + 0.1 * counted


def test_on_one_machine_looks_are_work_and_larger_parts_need_fewer() -> None:
    """Requests are nearly all that a small part costs there; ranks with a core each look beside their work."""
    scenario = Scenario((share(0.03, 1e9),), 1e9, 1e9, 2, 2, poll=(0.01, 0.1), cores=2)
    speeds = dataclasses.replace(DEFAULTS, put_s=0.002, get_s=0.002)
    steps = stream(scenario, speeds, Choice("plain", 4.0 * MIB, 2), 239, 2e7)
    waiting = stream(scenario, speeds, Choice("plain", 4.0 * MIB, 2), 239, 2e7, 0.05)
    spent = [sum(step.cpu for step in each) for each in (steps, waiting)]
    assert spent[1] - spent[0] == pytest.approx(0.002 * looks(scenario, 2 * 0.05))
    apart = dataclasses.replace(scenario, cores=None)
    ways = [
        [step.way for step in stream(apart, speeds, Choice("plain", 4.0 * MIB, 2), 239, 2e7, s)] for s in (0.0, 0.05)
    ]
    assert ways[0] == ways[1]
    assert best(scenario, speeds, ["plain"]).choice.part > 4.0 * MIB


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(dumps(DEFAULTS))
    assert read_speeds(tmp_path / "c.json") == DEFAULTS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memcpy": 0}, "memcpy of 0"),
        ({"put_s": -1}, "put_s of -1"),
        ({"apply": {"byte_s": -1e-9, "change_s": 0}}, "apply.byte_s"),
        ({"encode": {"class": {"byte_s": 1e-9, "change_s": 0}}}, "no encode.plain"),
        ({"disk_rate": "fast"}, "disk_rate"),
        ({"more": 1}, "more"),
    ],
)
def test_a_calibration_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    plain = {**json.loads(dumps(DEFAULTS)), **change}
    (tmp_path / "c.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match=said):
        read_speeds(tmp_path / "c.json")


def test_a_calibration_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dcr bench --out"):
        read_speeds(tmp_path / "none.json")


def test_the_papers_figures_are_those_it_gives() -> None:
    rows = paper_rows(DEFAULTS)
    assert len(rows) == 12
    by = {(r["model"], r["changed"], r["transport"]): r["paper"] for r in rows}
    assert {p["full_s"] for (m, _, _), p in by.items() if m == "120B"} == {750.0}
    assert {p["full_s"] for (m, _, _), p in by.items() if m == "30B"} == {None}
    assert [k for k, p in by.items() if p["refit_s"] == (150.0, 150.0)] == [("1T", 0.03, "direct")]
    assert {p["refit_s"] for (m, _, _), p in by.items() if m == "120B"} == {(22.6, 49.7)}
    assert {p["transport_share"] for (_, _, t), p in by.items() if t == "store"} == {None}
    for row in rows:
        assert row["ours"]["payload_s"] < row["paper"]["payload_s"], "fewer bits on the same link"
        if row["paper"]["full_s"] is not None:
            assert row["ours"]["full_s"] == pytest.approx(row["paper"]["full_s"], rel=0.01), "the same link"
