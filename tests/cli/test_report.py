"""dcr report: figures that agree with the checkpoints, from whole and from partial records."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.acts.census import CensusJob, census
from dcr_mpi.acts.logs import Run, job_of, read_runs
from dcr_mpi.kernels import get_kernels
from dcr_mpi.synth import TINY, trainer_layout
from tests.cli.conftest import Quick, Stages
from tests.cli.shell import everything
from tests.world import World, here

PLOTS = ("payload.svg", "changes.svg", "stages.svg", "balance.svg")


def kinds(world: World) -> list[dict[str, Any]]:
    """Words and changes by kind from step 0 to step 1, counted from the checkpoints alone."""
    job = CensusJob(world.path / "model/step-000000", world.path / "model/step-000001", trainer_layout(TINY))
    found = census(job, get_kernels("numpy"), lambda _: lambda _: None)["kinds"]
    return in_order({k: row[k] for k in ("kind", "dtype", "words", "changed")} for row in found)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["kind"], row["dtype"]))


def report(world: World, *more: str, ranks: int = 1) -> dict[str, Any]:
    out = world.path / "figures"
    found = world.dcr(ranks, "report", "--out", str(out), *more)
    assert json.loads((out / "report.json").read_bytes()) == found
    assert {p.name for p in out.iterdir()} == {Path(f).name for f in found["files"]}
    return found


def plots(world: World) -> dict[str, str]:
    """Text of every plot; each must be XML that stands alone."""
    texts = {name: (world.path / "figures" / name).read_text() for name in PLOTS}
    for text in texts.values():
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("viewBox")
        assert "NaN" not in text and "inf" not in text
    return texts


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.plots, self.links = 0, 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.plots += tag == "svg"
        self.links += any(name in ("src", "href") for name, _ in attributes)


@pytest.mark.mpi
def test_a_whole_cycle_by_several_ranks(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("begun", tmp_path / "w")
    sealed = world.cycle(1, 2, 2)
    found = report(world, "--html", ranks=2)
    (row,) = found["versions"]
    assert (row["version"], row["state"], row["base"]) == (1, "committed", 0)
    assert row["payload_bytes"] == sealed["bytes"]["payload"] and row["changed"] == sealed["detail"]["changed"]
    assert in_order(row["kinds"]) == kinds(world) and found["missing"] == []
    assert sum(k["changed"] for k in row["kinds"]) == row["changed"]
    assert [(s["act"], s["source"], len(s["by_rank"])) for s in found["stages"]] == [
        ("encode", "log", 2), ("refit", "log", 2), ("commit", "log", 1), ("apply", "log", 2),
    ]  # fmt: skip
    encode, refit = found["stages"][0]["by_rank"], found["stages"][1]["by_rank"]
    assert sum(rank["facts"]["payload"] for rank in encode) == row["payload_bytes"]
    assert sum(rank["facts"]["fetched"] for rank in refit) == row["payload_bytes"], "once over the wide-area link"
    assert all(0 < max(r["seconds"].values()) <= r["wall"] for r in encode + refit)
    drawn = plots(world)
    assert "encode: upload" in drawn["stages.svg"] and "refit rollout 1, rank 1" in drawn["balance.svg"]
    assert "model.layers.*.q (bf16)" in drawn["changes.svg"]
    page = _Page()
    page.feed((world.path / "figures/report.html").read_text())
    assert (page.plots, page.links) == (4, 0)


def test_text_for_people_and_nothing_but_the_figures_is_written(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("applied", tmp_path / "w")
    before = everything(world)
    done = here(world, "report", "--out", "a/b")
    assert done.code == 0 and done.out.startswith("report: 1 versions, ")
    assert "encode s  refit s  commit s  apply s" in done.out and "missing" not in done.out
    assert {k for k in set(everything(world)) - set(before) if "a/b" not in k and k != "a"} == set()


def test_without_logs_receipts_tell_what_they_can(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("applied", tmp_path / "w")
    told = world.path / "told"
    told.mkdir()
    (told / "decision.json").write_text('{"manifest_sha256": "x"}')
    (told / "cut.json").write_text('{"manifest_sha')
    shutil.rmtree(world.path / "events")
    found = report(world, "--receipts", str(told), "--set", "events.dir=null")
    assert [(s["act"], s["source"]) for s in found["stages"]] == [("refit", "receipt"), ("apply", "receipt")]
    assert found["versions"][0]["kinds"] is None
    assert [line.split(":")[0] for line in found["missing"]] == ["logs", f"receipt {told / 'cut.json'}", "version 1"]
    plots(world)
    assert "missing: version 1: changes by kind" in here(world, "report", "--out", "x").out

    other = stages.copy("begun", tmp_path / "other")
    other.dcr(1, "encode", str(other.synth(1)), "--receipt", str(told / "encode.json"))
    found = report(other, "--receipts", str(told / "encode.json"), "--set", "events.dir=null")
    assert in_order(found["versions"][0]["kinds"]) == kinds(other)
    assert [(s["act"], s["source"]) for s in found["stages"]] == [("encode", "receipt")]
    receipt = json.loads((told / "encode.json").read_bytes()) | {"policy_sha256": "0" * 64}
    (told / "encode.json").write_text(json.dumps(receipt))
    assert report(other, "--receipts", str(told / "encode.json"), "--set", "events.dir=null")["stages"] == []


def test_logs_of_another_place(stages: Stages, tmp_path: Path) -> None:
    """A site's own logs, brought to the trainer's, with a line that was cut by a full disk."""
    world = stages.copy("applied", tmp_path / "w")
    away = tmp_path / "away"
    away.mkdir()
    for act in ("refit", "apply"):
        shutil.move(world.path / f"events/{act}-rank0000.jsonl", away)
    assert [s["source"] for s in report(world)["stages"]] == ["log", "receipt", "log", "receipt"]
    with (away / "refit-rank0000.jsonl").open("a") as log:
        log.write('{"event":"end","version":1,"wal\n')
    found = report(world, "--events", str(away))
    assert [s["source"] for s in found["stages"]] == ["log"] * 4
    assert found["missing"] == ["logs: 1 lines that cannot be read"]
    done = world.here("report", "--out", "x", "--events", str(tmp_path / "nowhere"))
    assert done.code == 10 and "nowhere" in done.error


def test_versions_that_are_not_whole(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("applied", tmp_path / "w").inside()
    world.encode(2)
    world.dcr(1, "commit", "--abort", "loss is not a number")
    world.encode(2)
    shutil.rmtree(world.path / "store/test/versions/000001/parts")
    (world.path / "store/test/versions/000001/manifest.json").unlink()
    found = report(world)
    assert [(r["version"], r["state"], "parts" in r) for r in found["versions"]] == [
        (1, "committed", False), (2, "aborted", True), (3, "undecided", True),
    ]  # fmt: skip
    assert found["missing"] == ["version 1: sizes: collected, so there is no manifest"]
    plots(world)
    assert [r["version"] for r in report(world, "--versions", "2")["versions"]] == [2]
    assert [r["version"] for r in report(world, "--versions", "2..")["versions"]] == [2, 3]
    assert report(world, "--versions", "3..7")["missing"] == ["versions 4 to 7: not opened yet"]


def test_a_catch_up_is_taken_apart(stages: Stages, tmp_path: Path) -> None:
    """One run prepares and applies two versions: its seconds count once, and for the last of them."""
    world = stages.copy("begun", tmp_path / "w").inside()
    for step in (1, 2):
        world.encode(step)
        world.dcr(1, "commit", "--without", "rollout")
    assert world.dcr(1, "refit", "--site", "rollout", "--catch-up")["replayed"] == [1, 2]
    (log,) = [e for e in world.events("refit") if e["event"] == "end"]
    for more in ((), ("--set", "events.dir=null")):
        refit, apply = [s for s in report(world, *more)["stages"] if s["subject"] == "rollout"]
        assert (refit["act"], refit["version"], apply["act"], apply["version"]) == ("refit", 2, "apply", 2)
        assert "relay" in refit["seconds"] and "write" not in refit["seconds"]
        assert "write" in apply["seconds"] and not {"relay", "plan"} & set(apply["seconds"])
        if not more:  # receipts have no wall clock, and stages of several threads overlap
            assert refit["wall"] + apply["wall"] <= log["wall"] * 1.001


def test_nothing_yet(stages: Stages, tmp_path: Path) -> None:
    world: Quick = stages.copy("begun", tmp_path / "w")
    assert report(world)["versions"] == []
    plots(world)
    done = here(world, "report", "--out", "x", "--set", "policy=other")
    assert done.code == 10 and not (world.path / "x/report.json").exists()


@pytest.mark.parametrize("versions", ["4..3", "x", "1..2..3", "..", "-1"])
def test_a_mistyped_range(stages: Stages, versions: str) -> None:
    done = here(stages["begun"], "report", "--out", "x", f"--versions={versions}")
    assert done.code == 2 and "expected versions" in done.error


def _run(rank: int, began: float, wall: float, size: int = 2) -> Run:
    return Run("refit", "s", 1, rank, size, began, wall, {}, {}, {})


def test_the_ranks_of_one_job_of_several_in_the_same_logs(tmp_path: Path) -> None:
    work = [_run(0, 100, 9), _run(1, 101, 7)]
    again = [_run(0, 200, 1), _run(1, 200, 1)]
    alone = [_run(0, 300, 2, size=1)]
    assert job_of([*again, *work, *alone], "refit", "s", 1, 0.0) == work, "who came later found the work done"
    assert job_of([*again, *work], "refit", "s", 1, 150.0) == again, "another life of that version"
    assert job_of(work, "refit", "s", 2, 0.0) == job_of(work, "apply", "s", 1, 0.0) == []
    (tmp_path / "a.jsonl").write_text('{"event":"end","error":"NotReady","version":1}\n{"event":"end"}\n')
    assert read_runs([tmp_path]) == ([], 0), "what failed, or was about no version, is no run"
