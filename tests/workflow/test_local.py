"""The workflow on one machine, with mpirun: the same rules that clusters run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.flow import Flow
from tests.world import LAUNCHERS

LOCAL = ("--workflow-profile", "workflow/profiles/local", "--configfile", "flow.yaml")
KIND = sorted(LAUNCHERS)[0]
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_three_versions(tmp_path: Path) -> None:
    flow = Flow(tmp_path, LAUNCHERS[KIND])
    flow.configure()
    flow.must(*LOCAL)
    flow.check(3)
