"""The workflow on one machine, with mpirun: the same rules that clusters run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.workflow.flow import Flow
from tests.world import LAUNCHERS, wait_for

LOCAL = ("--workflow-profile", "workflow/profiles/local", "--configfile")
KIND = sorted(LAUNCHERS)[0]
FIGURES = ("payload", "changes", "stages", "balance")
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]


def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    """A job per stage; then nothing to do, however old the receipts; then a batch that goes on from there."""
    flow = Flow(tmp_path, LAUNCHERS[KIND])
    flow.configure(versions={"last": 1})
    flow.must(*LOCAL, "flow.yaml")
    flow.check(1)
    assert flow.receipt("rollout.verified", 1)["state"] == flow.receipt("encoded", 1)["state"]
    for act in ("encode", "rollout.refit", "decide", "rollout.apply", "rollout.verify"):
        assert (tmp_path / f"run/logs/000001/{act}.log").stat().st_size
        assert (tmp_path / f"run/benchmarks/000001/{act}.tsv").read_text().startswith("s\th:m:s")
    os.utime(tmp_path / "run/receipts/000000/policy.json")
    os.utime(tmp_path / "run/receipts/000001/encoded.json")
    flow.configure(versions={"last": 1}, start=False)
    assert "Nothing to be done" in flow.must(*LOCAL, "flow.yaml").out

    flow.configure(versions={"first": 2, "last": 3}, start=False, batch=2)
    flow.must(*LOCAL, "flow.yaml")
    flow.check(3)
    numbers = json.loads((tmp_path / "run/report/report.json").read_text())
    assert [row["version"] for row in numbers["versions"]] == [2, 3]

    flow.must(*LOCAL, "flow.yaml", "--report", "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in FIGURES:
        assert f"{name}.svg" in page
        assert (tmp_path / f"workflow/report/{name}.rst").read_text().strip().split(",")[0][:40] in page


def test_snakemake_is_killed_and_its_job_is_not(tmp_path: Path) -> None:
    """The job goes on to its receipt, which Snakemake took for the beginning of one; what comes after is done too."""
    flow = Flow(tmp_path, LAUNCHERS[KIND])
    flow.configure(versions={"last": 1})
    receipt = tmp_path / "run/receipts/000001/encoded.json"
    with flow.started(*LOCAL, "flow.yaml") as killed:
        wait_for(tmp_path / "run/logs/000001/encode.log")
        os.kill(killed.pid, signal.SIGKILL)
        flow.finish(killed)  # its job has the other end of the pipe
    assert receipt.exists()
    flow.must(*LOCAL, "flow.yaml", "--unlock")
    flow.must(*LOCAL, "flow.yaml")
    flow.check(1)


def test_no_rule_believes_a_receipt(tmp_path: Path) -> None:
    """As if the executor had called a job successful that it knows nothing of: what lies there is of another run.

    The version is given up, and the run goes on with the next.
    """
    flow = Flow(tmp_path, LAUNCHERS[KIND])
    flow.world.begin()
    flow.configure(start=False, versions={"last": 1})
    flow.must(*LOCAL, "flow.yaml", "--until", "encode")
    encoded = tmp_path / "run/receipts/000001/encoded.json"
    encoded.write_text(json.dumps({**json.loads(encoded.read_text()), "manifest_sha256": "0" * 64}))
    before = flow.world.words()
    failed = flow.run(*LOCAL, "flow.yaml", "--retries", "0")
    assert failed.code == 1
    assert "Conflict, exit code 13" in failed.out and "manifest 0000000000000000 of version 1" in failed.out
    assert flow.world.words() == before and not (tmp_path / "run/receipts/000001/rollout.prepared.json").exists()
    flow.world.dcr(1, "commit", "--abort", "bad batch")
    flow.configure(start=False, versions={"last": 2, "aborted": [1]})
    flow.must(*LOCAL, "flow.yaml", "--until", "verify")
    assert flow.receipt("rollout.verified", 2)["version"] == 2
    assert flow.world.words() == flow.world.full_transfer(1), "the next version takes the aborted one's step"
