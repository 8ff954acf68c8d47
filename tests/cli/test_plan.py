"""dcr plan and dcr bench on the command line: what they print, write and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.cli import main
from dcr_mpi.errors import UsageError

KEYS = {
    "act", "bits_per_change", "bottleneck", "calibration", "changed_fraction", "choice", "dense_bytes", "full_s", "law",
    "link_bytes_s", "mode", "parts", "pause_s", "payload_bytes", "ranks", "sites", "speedup", "stages", "total_s",
    "transport", "transport_share",
}  # fmt: skip
STAGES = ["start", "encode", "upload", "fetch", "relay", "prepare", "decide", "apply"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command line that must end with the code for usage; argparse leaves, our errors return."""
    try:
        code: Any = main(list(arguments))
    except SystemExit as left:
        code = left.code
    out, error = capsys.readouterr()
    assert (code, out) == (UsageError.code, "")
    return error


def test_a_plan_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "plan", "--size", "247.2GB", "--trainer-ranks", "64", "--site-ranks", "64", "--sites", "2")
    assert set(found) == KEYS
    assert [stage["name"] for stage in found["stages"]] == STAGES
    assert all(set(stage) == {"name", "busy_s", "adds_s", "bytes"} for stage in found["stages"])
    assert set(found["choice"]) == {"positions", "part_mib", "degree"}
    assert found["total_s"] == pytest.approx(sum(stage["adds_s"] for stage in found["stages"]))
    assert found["dense_bytes"] == pytest.approx(247.2e9)
    assert found["full_s"] == pytest.approx(247.2e9 / 330e6, rel=0.01)
    assert found["speedup"] == pytest.approx(found["full_s"] / found["total_s"])


def test_a_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--parameters", "120B"]) == 0
    out = capsys.readouterr().out
    for stage in STAGES:
        assert re.search(rf"^  {stage} ", out, re.MULTILINE), stage
    assert "codec.positions" in out and "relay.degree" in out and "speeds: defaults: " in out


def test_options_are_what_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--part-mib", "8", "--degree", "3", "--positions", "plain")
    assert _json(capsys, "plan", *given)["choice"] == {"positions": "plain", "part_mib": 8.0, "degree": 3}
    mix = ("--dtype", "bf16=0.5", "--dtype", "f32=0.5@10%")
    found = _json(capsys, "plan", "--parameters", "1e9", *mix)
    assert found["dense_bytes"] == pytest.approx(3e9)
    assert found["changed_fraction"] == pytest.approx(0.065)
    slow, fast = (_json(capsys, "plan", "--link", rate)["total_s"] for rate in ("10Mbit/s", "100GB/s"))
    assert slow > fast
    once, each = (_json(capsys, "plan", "--mode", "jobs", "--launch", s)["total_s"] for s in ("0", "30"))
    # Who has waited longer looks less often, so a look may come up to half the longest pause, a second, later.
    assert once + 60 <= each <= once + 61, "two starts one after another"
    store, direct = (_json(capsys, "plan", "--transport", t)["total_s"] for t in ("store", "direct"))
    assert direct < store


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parameters", "many"], "30B, 1.5T"),
        (["--parameters", "0"], "found '0'"),
        (["--parameters", "1B", "--size", "2GB"], "--parameters with --size"),
        (["--size", "3 furlongs"], "247.2GB or 64MiB"),
        (["--link", "fast"], "330MB/s"),
        (["--changed", "1.5"], "below 1"),
        (["--changed", "3%%"], "a fraction"),
        (["--dtype", "bf17=1"], "DTYPE=SHARE"),
        (["--dtype", "bf16"], "DTYPE=SHARE"),
        (["--dtype", "bf16=0.5"], "add up to 0.5"),
        (["--dtype", "bf16=1@"], "DTYPE=SHARE"),
        (["--site-ranks", "4", "--replicas", "8"], "8 copies on 4 ranks"),
        (["--poll", "2", "1"], "the shorter pause first"),
        (["--launch", "30"], "--mode jobs"),
        (["--trainer-ranks", "0"], "1 or more"),
        (["--part-mib", "0"], "over 0"),
        (["--latency", "-1"], "0 or more"),
        (["--latency", "1e308"], "at most 1e+06"),
        (["--law", "normal"], "invalid choice"),
        (["--link", "1e-300"], "between 1 and 1e+15"),
        (["--disk", "0.1B/s"], "between 1 and 1e+15"),
        (["--size", "1e308"], "between 1 and 1e+18"),
        (["--changed", "1e-320"], "between 1e-12 and 1"),
        (["--part-mib", "1e305"], "at most 1e6"),
        (["--tiles", "10000001"], "at most 10,000,000"),
        (["--cores", "2", "--site-nodes", "2"], "one machine"),
        (["--site-ranks", "1", "--site-nodes", "100"], "100 with 1 ranks"),
        (["--paper", "--link", "1kB/s"], "--link beside it"),
        (["--paper", "--dtype", "f32=1"], "--dtype beside it"),
        (["--paper", "--disk", "1MB/s"], "--disk beside it"),
        (["--calibration", "nowhere.json"], "dcr bench --out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_with_what_is_expected(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in _refused(capsys, "plan", *arguments)


def test_the_papers_cases(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(capsys, "plan", "--paper")["rows"]
    assert {r["model"] for r in rows} == {"30B", "120B", "1T"}
    assert main(["plan", "--paper"]) == 0
    out = capsys.readouterr().out
    assert "not given" in out and "22.6 to 49.7 s" in out and "77% to 94%" in out and "12 to 40x" in out
    assert len(re.findall(r"^  120B, 3%, relay tree .* 750 s ", out, re.MULTILINE)) == 1


def test_bench_measures_and_plan_takes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "dcr.yaml"
    config.write_text("policy: p\nstore: {url: store}\n")
    file = tmp_path / "calibration.json"
    common = ("bench", "--mib", "1", "--dir", str(tmp_path), "--out", str(file), "-c", str(config))
    found = _json(capsys, *common)
    assert set(found) == {"act", "out", "seconds", "speeds"}
    speeds = json.loads(file.read_text())
    assert speeds == found["speeds"]
    for act in ("encode", "prepare"):
        for how in ("class", "plain"):
            cost = speeds[act][how]
            assert 0 < cost["byte_s"] + cost["change_s"] < 1e-3
    assert speeds["put_rate"] > 0 and speeds["get_rate"] > 0 and speeds["disk_rate"] > 0
    assert 0 < speeds["start_s"] < 100
    assert not [p for p in (tmp_path / "store").rglob("*") if p.is_file()], "what was measured with is gone"
    planned = _json(capsys, "plan", "--calibration", str(file))
    assert planned["calibration"].startswith("dcr bench on ")
    assert main(["plan", "--calibration", str(file)]) == 0
    capsys.readouterr()


def test_one_machine_has_one_disk(capsys: pytest.CaptureFixture[str]) -> None:
    many, one = (_json(capsys, "plan", "--cores", "4", "--site-ranks", "64", *n) for n in ((), ("--site-nodes", "1")))
    assert many == one


def test_a_calibration_of_other_changes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for beside in (("--changed", "30%"), ("--law", "uniform")):
        assert "measured with adam at 0.03" in _json(capsys, "plan", *beside)["calibration"]
    assert "measured with" not in _json(capsys, "plan", "--changed", "1%")["calibration"]


def test_bench_for_people_says_that_no_store_was_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "--mib", "1", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no store was measured" in out
    for what in (
        "memcpy",
        "encode, class",
        "prepare, plain",
        "apply",
        "disk",
        "fixed cost of refit",
        "start of a process",
    ):
        assert what in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dir", "nowhere"], "no such directory"),
        (["-c", "nowhere.yaml"], "no such file"),
        (["--out", "."], "a directory"),
        (["--mib", "0"], "1 or more"),
    ],
)
def test_bench_refuses_before_it_measures(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in _refused(capsys, "bench", *arguments)
