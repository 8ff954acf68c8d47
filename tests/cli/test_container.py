"""The image's definition: what it copies is there, what it runs is a shell's, and no wheel brings another MPI."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.world import ROOT

TEXT = (ROOT / "containers/dcr-mpi.def").read_text()
SECTIONS = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_files_that_are_copied_are_there_and_are_all_that_the_build_needs() -> None:
    pairs = [line.split() for line in SECTIONS["files"].splitlines() if line.strip()]
    assert all((ROOT / source).exists() and target == f"/opt/dcr-mpi/{source}" for source, target in pairs)
    project = (ROOT / "pyproject.toml").read_text()
    needed = {*re.findall(r'^readme = "(.*)"', project, re.MULTILINE), "LICENSE", "pyproject.toml", "dcr_mpi"}
    assert needed <= {source for source, _ in pairs}


@pytest.mark.parametrize("name", ["post", "environment", "runscript", "test"])
def test_sections_are_a_shells(name: str) -> None:
    assert subprocess.run(["sh", "-n"], input=SECTIONS[name], text=True, check=False).returncode == 0
    if shutil.which("shellcheck"):
        text = "#!/bin/sh\n" + SECTIONS[name]
        done = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout


def test_every_package_of_the_lock_but_the_mpi(tmp_path_factory: pytest.TempPathFactory) -> None:
    (command,) = re.findall(r"^ *(awk .*) /opt/dcr-mpi/requirements/run.lock", SECTIONS["post"], re.MULTILINE)
    lock = (ROOT / "requirements/run.lock").read_text()
    kept = subprocess.run(["sh", "-c", command], input=lock, text=True, capture_output=True, check=True).stdout
    names = [re.findall(r"^([a-z0-9_.-]+)==", text, re.MULTILINE | re.IGNORECASE) for text in (lock, kept)]
    assert set(names[0]) - set(names[1]) == {"mpich"} and "mpi4py" in names[1]
    lines = lock.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("mpich=="))
    gone = 1 + next(k for k, line in enumerate(lines[at + 1 :]) if not line.startswith(" "))
    assert kept.splitlines() == lines[:at] + lines[at + gone :], "with its hashes, and nobody else's"
