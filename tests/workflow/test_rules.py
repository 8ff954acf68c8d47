"""What the rules say, without running one: lint, format, configuration, and that no checkpoint is ever an output."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.flow import Flow
from tests.world import LAUNCHERS, ROOT

SCHEMA = yaml.safe_load((ROOT / "workflow/schemas/workflow.schema.yaml").read_text())
RULES = sorted((ROOT / "workflow/rules").glob("*.smk"))
KIND = sorted(LAUNCHERS)[0]


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path, LAUNCHERS[KIND], sites=("east", "west.2"))


def _planned(flow: Flow, *more: str, **keys: Any) -> str:
    flow.configure(**keys)
    return flow.must("--configfile", "flow.yaml", "--cores", "1", "-n", "-p", *more).out


def test_lint_and_format(flow: Flow) -> None:
    linted = flow.must("--configfile", "configs/workflow.yaml", "--lint")
    assert "in a good condition" in linted.out
    checked = subprocess.run(
        [sys.executable, "-m", "snakefmt", "--check", "Snakefile", *map(str, RULES)], env=flow.environment(),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck: apt-get install shellcheck")
def test_the_script_of_the_clusters() -> None:
    subprocess.run(["shellcheck", str(ROOT / "slurm/two-sites/cluster")], check=True, timeout=60)


def test_the_rules_are_thin() -> None:
    for path in [ROOT / "Snakefile", *RULES]:
        text = path.read_text()
        assert len(text.splitlines()) <= 300, path
        assert path.name == "common.smk" or "def " not in text, f"{path}: functions are in common.smk"
    rules = "\n".join(path.read_text() for path in RULES)
    named = set(re.findall(r"^rule (\w+):", rules, re.MULTILINE))
    blocks = {block.split(":")[0]: block for block in re.split(r"^rule ", rules, flags=re.MULTILINE)[1:]}
    assert named == set(blocks) > {"encode", "refit", "decide", "apply", "verify", "figures", "publish", "follow"}
    for name in named - {"replicas"}:
        assert "    log:" in blocks[name] and "    benchmark:" in blocks[name], name
        assert name in {"train", "figures"} or "    retries:" in blocks[name], name
    ranks = {name for name, block in blocks.items() if "mpi=" in block}
    for profile in ("slurm", "slurm/two-sites"):
        launchers = yaml.safe_load((ROOT / profile / "config.yaml").read_text())["set-resources"]
        assert set(launchers) == ranks, f"{profile} says how the ranks of every rule start"


@pytest.mark.parametrize("batch", [0, 2])
def test_receipts_and_figures_are_all_that_is_ever_made(flow: Flow, batch: int) -> None:
    """Snakemake deletes outputs before a job: no model, replica, store or state may be one."""
    plan = _planned(flow, batch=batch)
    outputs = {path for line in re.findall(r"^ +output: (.*)$", plan, re.MULTILINE) for path in line.split(", ")}
    assert len(outputs) > 8
    for path in outputs:
        assert re.fullmatch(r"run/(receipts/[-\d]+/([\w.]+\.json|trained)|report/\w+\.\w+)", path), path


def test_every_act_holds_the_receipts_before_it_against_the_store(flow: Flow) -> None:
    plan = _planned(
        flow, "--set-resources", "refit:mpi=srun --mpi=pmix", site={"nodes": 2}, sites={"east": {"ranks": 6, "gpus": 2}}
    )
    (refit,) = re.findall(r"^Shell command: (.* refit .*--site east --version 000002.*)$", plan, re.MULTILINE)
    assert refit.startswith("srun --mpi=pmix -N 2 -c 1 -n 6 ")
    asked = set(re.findall(r"site=(\S+)\n +resources: .* gres=(\S*), tasks_per_gpu=(\d)", plan))
    assert asked == {("east", "gpu:2", "2"), ("west.2", "", "2")}
    assert "--needs run/receipts/000001/east.applied.json --needs run/receipts/000002/encoded.json" in refit
    (commit,) = re.findall(r"^Shell command: (.* commit .*--version 000002.*)$", plan, re.MULTILINE)
    for name in ("encoded", "east.prepared", "west.2.prepared"):
        assert f"--needs run/receipts/000002/{name}.json" in commit
    for act, after in {"encode": "000001/committed", "apply": "000002/committed"}.items():
        for command in re.findall(rf"^Shell command: (.* {act} .*--version 000002.*)$", plan, re.MULTILINE):
            assert f"--needs run/receipts/{after}.json" in command


def test_an_aborted_version_leaves_its_step_to_the_next(flow: Flow) -> None:
    plan = _planned(flow, versions={"last": 4, "aborted": [2]}, steps={"base": 100, "every": 10})
    made = dict(re.findall(r" encode (\S+) .*--version (\d+)", plan))
    assert made == {"model/step-000110": "000001", "model/step-000120": "000003", "model/step-000130": "000004"}
    assert "--needs run/receipts/000001/committed.json" in re.findall(r" encode .*--version 000003.*", plan)[0]


def test_receipts_that_were_lost(flow: Flow) -> None:
    """Those of versions that others were made from are not needed; the work that is left is that of the last ones."""
    for version in ("000001", "000002", "000003"):
        folder = flow.path / "run/receipts" / version
        folder.mkdir(parents=True)
        for name in ("encoded", "committed", *(f"{s}.{act}" for s in flow.sites for act in ("prepared", "applied"))):
            (folder / f"{name}.json").write_text("{}")
    keys = {"start": False, "train": None, "versions": {"last": 4}}
    whole = _planned(flow, **keys)
    assert set(re.findall(r" --version (\d+)", whole)) == {"000004"}
    for lost in ("000001/encoded", "000001/east.applied", "000002/committed", "000003/encoded"):
        (flow.path / f"run/receipts/{lost}.json").unlink()
    assert set(re.findall(r" --version (\d+)", _planned(flow, **keys))) == {"000004"}


def test_one_side_alone(flow: Flow) -> None:
    plan = _planned(flow, here={"trainer": False, "sites": ["west.2"]}, start=False, versions={"last": 1})
    assert set(re.findall(r"^rule (\w+):", plan, re.MULTILINE)) == {"refit", "apply", "verify", "all"}
    assert "east" not in plan and "--wait 60" in plan
    plan = _planned(flow, here={"sites": []}, start=False, train=None, versions={"last": 1})
    jobs = set(re.findall(r"^rule (\w+):", plan, re.MULTILINE))
    assert jobs == {"encode", "decide", "figures", "all"}


def test_names_that_a_shell_would_take_apart(flow: Flow) -> None:
    names = {"out": "a run; of $HOME's", "checkpoint": "the model/{step}'s", "train": None, "start": False}
    assert """ 000002 2 'the model/2'"'"'s' 000003 3 """ in _planned(flow, **names, batch=3)
    plan = _planned(flow, **names)
    assert """ encode 'the model/1'"'"'s' """ in plan
    assert "--needs 'a run; of $HOME'\"'\"'s/receipts/000001/committed.json'" in plan
    assert ">'a run; of $HOME'\"'\"'s/logs/000001/encode.log'" in plan


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"batches": 2}, "Additional properties are not allowed ('batches' was unexpected)"),
        ({"trainer": {"ranks": 1}}, "1 is less than the minimum of 2"),
        ({"checkpoint": "model"}, "does not match"),
        ({"versions": {"first": 3, "last": 2}}, "Next: raise versions.last"),
        ({"here": {"sites": ["north"]}}, "site 'north': dcr.yaml knows ['east', 'west.2']"),
        ({"dcr": "none.yaml"}, "exit code 2: configuration none.yaml: found no such file"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_wrong(flow: Flow, keys: dict[str, Any], says: str) -> None:
    flow.configure(**keys)
    refused = flow.run("--configfile", "flow.yaml", "--cores", "1", "-n")
    assert refused.code == 1 and says in refused.out, refused.out


def _keys(node: dict[str, Any], prefix: str = "") -> set[str]:
    if "$ref" in node:
        node = {**SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], **node}
    inner = node.get("properties", {})
    return {prefix + k for k in inner} | {x for k, v in inner.items() for x in _keys(v, f"{prefix}{k}.")}


def test_the_documentation_has_every_key_and_no_other() -> None:
    text = (ROOT / "docs/workflow.md").read_text()
    text = text[text.index("## Configuration") : text.index("## Two sites")]
    rows = re.findall(r"^\| `([\w.]+)` \|(.*?)\| (\S.*?) \|$", text, re.MULTILINE)
    documented = {key for key, _, _ in rows}
    keys = {k for k in _keys(SCHEMA) if not k.startswith("site.")}  # the trainer's and a site's are the same
    assert documented == keys | {"site"}, documented ^ (keys | {"site"})
