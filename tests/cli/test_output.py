"""What a command says: one JSON object for machines, receipts, progress for people, JSON lines of every rank."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.model import Receipt
from tests.cli.conftest import Stages
from tests.cli.shell import dcr
from tests.world import World

EVERY_BYTE = ("--set", "events.progress_s=0.000001")
LINE = re.compile(
    r"(?P<label>[a-z0-9, ]+?)( \(rank (?P<rank>\d+) of (?P<size>\d+)\))?: "
    r"(\d+%, [\d.]+ [KMG]?i?B of [\d.]+ [KMG]?i?B(, [\d.]+ [KMG]?i?B/s)?(, [\d.]+ (s|min \d+ s) left)?"
    r"|[\d.]+ [KMG]?i?B in [\d.]+ s(, [\d.]+ [KMG]?i?B/s)?)"
)


def _lines(world: World, act: str) -> dict[int, list[dict[str, Any]]]:
    """Parsed log lines of an act, by rank."""
    return {
        int(path.stem[-4:]): [json.loads(line) for line in path.read_text().splitlines()]
        for path in (world.path / "events").glob(f"{act}-rank*.jsonl")
    }


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
def test_json_on_stdout_progress_on_stderr_a_receipt_and_the_log(stages: Stages, tmp_path: Path, ranks: int) -> None:
    """One refit looked at from all sides."""
    world = stages.copy("sealed", tmp_path / "w")
    shutil.rmtree(world.path / "events")  # with what other tests were refused on this stage
    receipt = world.path / "receipts/refit.json"
    done = world.run(ranks, "refit", "--site", "rollout", "--receipt", str(receipt), *EVERY_BYTE)
    assert done.code == 0, done.error
    (line,) = done.out.splitlines()
    result = json.loads(line)
    assert json.loads(receipt.read_bytes()) == result
    assert list(receipt.parent.iterdir()) == [receipt], "no temporary file is left"
    assert set(result) == set(Receipt.__dataclass_fields__)
    assert (result["act"], result["subject"], result["version"], result["ranks"]) == ("prepared", "rollout", 1, ranks)
    assert {"plan", "relay", "decode", "journal"} <= set(result["seconds"])
    _check_progress(done.error, "version 1, refit", ranks)
    _check_log(_lines(world, "refit"), ranks)


def _check_progress(text: str, label: str, ranks: int) -> None:
    assert "\r" not in text and "\x1b" not in text
    lines = text.splitlines()
    found = [match for line in lines if (match := LINE.fullmatch(line))]
    assert len(found) == len(lines), [line for line in lines if not LINE.fullmatch(line)]
    assert {match["label"] for match in found} == {label}
    assert {(match["rank"], match["size"]) for match in found} == {("0", str(ranks)) if ranks > 1 else (None, None)}
    underway = [line for line in lines if " left" in line]
    assert underway and all("/s" in line for line in underway), "rate and time left"


def _check_log(logs: dict[int, list[dict[str, Any]]], ranks: int) -> None:
    assert sorted(logs) == list(range(ranks))
    for rank, lines in logs.items():
        for line in lines:
            assert list(line)[:6] == ["ts", "act", "subject", "rank", "size", "event"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", line["ts"])
            assert (line["act"], line["subject"], line["rank"], line["size"]) == ("refit", "rollout", rank, ranks)
        assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
        events = [line["event"] for line in lines]
        assert events[0] == "begin" and events[-1] == "end"
        assert set(events) <= {"begin", "stage", "progress", "relayed", "end"}
        stages = [line for line in lines if line["event"] == "stage"]
        assert all({"stage", "seconds", "bytes"} <= set(line) for line in stages)
        end = lines[-1]
        assert {"wall", "seconds", "bytes", "dropped"} <= set(end) and end["dropped"] == 0 and "error" not in end
        for name, total in end["seconds"].items():
            assert total == pytest.approx(sum(line["seconds"] for line in stages if line["stage"] == name))
    progress = [line for lines in logs.values() for line in lines if line["event"] == "progress"]
    assert all(0 <= line["done"] <= line["total"] and line["label"] == "refit" for line in progress)
    assert any(line["event"] == "progress" for line in logs[0])
    relayed = [line for lines in logs.values() for line in lines if line["event"] == "relayed"]
    assert len(relayed) == ranks
    assert sum(line["fetched"] for line in relayed) > 0
    assert sum(line["sent"] for line in relayed) == sum(line["received"] for line in relayed)


@pytest.mark.mpi
def test_an_error_is_one_message_and_ends_the_log(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("begun", tmp_path / "w")
    for ranks in (1, 2):
        done = world.run(ranks, "encode", "nowhere")
        assert (done.code, done.out) == (10, "")
        assert done.error.count("listing checkpoint nowhere: found ENOENT") == 1
        assert "exit code 10" in done.error
    ends = [line for lines in _lines(world, "encode").values() for line in lines if line["event"] == "end"]
    assert ends and all(end["error"] in ("NotReady", "PeerFailed") and end["message"] for end in ends)


@pytest.mark.mpi
def test_only_one_rank_prints(stages: Stages) -> None:
    alone = stages["applied"].dcr(1, "status")
    done = stages["applied"].run(3, "status")
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert json.loads(line) == alone


@pytest.mark.faults
def test_a_receipt_is_replaced_atomically(stages: Stages, tmp_path: Path) -> None:
    """Killed at its rename, the old receipt stands whole; status replaces no other file."""
    receipt = tmp_path / "receipt.json"
    receipt.write_text("old")
    kill = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=rename,renameat,renameat2:signal=KILL:when=1")
    done = stages["applied"].run(1, "status", "--receipt", str(receipt), before=kill)
    assert done.code in (-9, 137)
    assert receipt.read_text() == "old"
    done = stages["applied"].run(1, "status", "--receipt", str(receipt))
    assert json.loads(receipt.read_bytes()) == done.json


def test_a_receipt_that_cannot_be_written_is_found_before_the_work(stages: Stages, tmp_path: Path) -> None:
    world = stages.copy("sealed", tmp_path / "w")
    done = world.run(1, "refit", "--site", "rollout", "--receipt", str(world.config / "receipt.json"))
    assert done.code == 2, done.error
    assert "dcr.yaml that is no directory" in done.error
    assert world.dcr(1, "status")["versions"][-1]["sites"] == {"rollout": "waiting"}


def test_text_for_people(stages: Stages, tmp_path: Path) -> None:
    """Without --json: a few lines with units; the numbers are those of the JSON."""
    world = stages.copy("begun", tmp_path / "w")
    new = str(world.synth(1))
    text = dcr(world, "encode", new).out
    assert re.match(r"encoded: subject trainer, version 1, base 0, state [0-9a-f]{16}, \d+ of \d+ words changed", text)
    assert re.search(r"payload [\d.]+ KiB for [\d.]+ KiB, [\d.]+ bits per change", text)
    assert re.search(r"^  seconds: plan [\d.]+, check ", text, re.MULTILINE)
    assert dcr(world, "refit", "--site", "rollout").out.startswith("prepared: subject rollout, version 1, base 0")
    assert dcr(world, "commit").out == "committed: version 1\n"
    assert dcr(world, "apply", "--site", "rollout").out.startswith("applied: subject rollout, version 1")
    assert dcr(world, "refit", "--site", "rollout").out.startswith("up to date: site rollout, version 1")
    assert re.match(r"verified: subject replica .*, version 1, state", dcr(world, "verify", "--site", "rollout").out)
    assert dcr(world, "init", "--site", "rollout").out.startswith("there already, its bits not looked at")
    text = dcr(world, "run", str(world.synth(2))).out
    assert re.match(r"version 2 is everywhere; state [0-9a-f]{16}\n  encode +[\d.]+ s\n  refit rollout ", text)


def test_a_reader_that_goes_away_is_no_error(stages: Stages) -> None:
    """As in ``dcr inspect FILE | head -0``: the pipe is closed before anything is printed."""
    world = stages["applied"]
    end, begin = os.pipe()
    os.close(end)
    done = subprocess.run(
        [sys.executable, "-m", "dcr_mpi", "inspect", str(world.path / "store/test/policy.json")],
        env=world.environment(), stdout=begin, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(begin)
    assert (done.returncode, done.stderr) == (0, "")
