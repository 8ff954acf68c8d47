"""The guide is true: the worked example of docs/operations.md is taken from the page and typed as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import KIND
from tests.world import LAUNCHERS, ROOT

PAGE = (ROOT / "docs/operations.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _typed(after: str) -> str:
    """The commands of the first console block after some words."""
    return "\n".join(re.findall(r"^\$ (.*)$", PAGE[PAGE.index(after) :].split("```console\n")[1].split("```")[0], re.M))


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_the_worked_example_and_each_way_to_restore(tmp_path: Path) -> None:
    files = {}
    for block in [*_blocks("python"), *_blocks("yaml")]:
        name = block.partition("\n")[0].removeprefix("# ")
        files[name] = block
        (tmp_path / name).write_text(block)
    assert set(files) == {"layouts.py", "write_step.py", "dcr.yaml"}
    launcher, programs = LAUNCHERS[KIND], tmp_path / "bin"
    programs.mkdir()
    for name, argv in (("dcr", f"{sys.executable} -m dcr_mpi"), ("python", sys.executable), ("mpirun", launcher.path)):
        (programs / name).write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
        (programs / name).chmod(0o755)
    env = {**launcher.environment(), "PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}"}

    def bash(commands: str) -> str:
        done = subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=env, text=True, capture_output=True)
        assert done.returncode == 0, f"{commands}\n{done.stderr}"
        return done.stdout

    said = bash(_typed("## A version by hand"))
    (example,) = re.findall(r"^`encode` said here: `(.*)`", PAGE, re.MULTILINE)
    words, payload = example.split(", payload ")
    assert words in said and payload.split(" for ")[1].split(",")[0] in said, "the weights are the same everywhere"
    assert "verified: subject replica" in said and "version      1  committed" in said
    for way in ("**Restore a replica**", "training shards of the newest committed version", "**Start over"):
        bash(_typed(way))
        assert "verified: " in bash("dcr verify --site rollout")


def test_json_blocks_are_layouts() -> None:
    from dcr_mpi.jsonable import loads
    from dcr_mpi.layout import check_layout, tensors_of
    from dcr_mpi.model import Layout

    (block,) = _blocks("json")
    layout = loads(Layout, block.encode(), "the page")
    check_layout(layout, tensors_of(layout))
