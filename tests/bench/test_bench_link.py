"""The benchmark over links: the links have the rate that they are said to have, and a run writes what machines read."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.link import __main__ as program
from bench.link.memory import files
from bench.link.net import SENDER, SIDES, Links, lacking
from bench.shapes import SHAPES, of_size
from dcr_mpi.dtypes import dtype
from dcr_mpi.layout import tensors_of
from dcr_mpi.mounts import mount_of
from dcr_mpi.synth import trainer_layout

pytestmark = [pytest.mark.skipif(bool(lacking()), reason=f"no links here: {lacking()}"), pytest.mark.timeout(300)]
KEYS = {
    "transport", "changed_fraction", "law", "full_s", "refit_s", "speedup", "transport_share", "pause_s",
    "wire_bytes_if", "fetched_bytes", "ranks", "link_bytes_s",
}  # fmt: skip
RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    link, _ = listener.accept()
    while link.recv(1 << 20):
        pass
    link.sendall(b"k")
"""


def test_a_link_is_as_slow_as_it_is_said_and_counts_what_crosses() -> None:
    """No faster, that is: a busy machine may be slower."""
    rate, size = 4e6, 2_000_000
    with Links(rate) as links:
        for side in SIDES:
            before = links.crossed()
            assert links.send(side, size) > 0.9 * size / rate
            after = links.crossed()
            assert size < after[side] - before[side] < 1.3 * size
            (other,) = set(SIDES) - {side}
            assert after[other] - before[other] < 0.1 * size
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert links._tag not in spaces


def test_what_goes_from_side_to_side_crosses_both_links_at_their_rate() -> None:
    rate, size = 4e6, 2_000_000
    with Links(rate) as links:
        there = links.address("rollout")
        receiver = subprocess.Popen(
            [*links.inside("rollout"), sys.executable, "-c", RECEIVER, there], stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None
        port, before, begun = receiver.stdout.readline().strip(), links.crossed(), time.monotonic()
        sender = [*links.inside("train"), sys.executable, "-c", SENDER, there, port, str(size)]
        subprocess.run(sender, check=True, timeout=60)
        assert time.monotonic() - begun > 0.9 * size / rate
        after = links.crossed()
        assert receiver.wait(30) == 0
        receiver.stdout.close()
        for side in SIDES:
            assert size < after[side] - before[side] < 1.3 * size


def test_files_in_memory_are_gone_afterwards(tmp_path: Path) -> None:
    with files(64 << 20) as folder:
        (folder / "f").write_bytes(b"1")
        assert mount_of(folder).in_memory or shutil.disk_usage("/dev/shm").free <= 64 << 20
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    with files(1 << 62) as folder:  # more than there is: where temporary files go
        assert folder.is_relative_to(tempfile.gettempdir())
    with files(1, tmp_path) as folder:
        assert folder.is_relative_to(tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_comes_as_close_to_a_size_as_layers_allow(name: str) -> None:
    def mib(layers: int) -> float:
        layout = trainer_layout(replace(SHAPES[name], layers=layers))
        return sum(math.prod(t.shape) * dtype(t.dtype).itemsize for t in tensors_of(layout)) / (1 << 20)

    for wanted in (1, 300, 1024):
        layers = of_size(SHAPES[name], wanted).layers
        others = [n for n in (layers - 1, layers + 1) if n > 0]
        assert abs(mib(layers) - wanted) <= min(abs(mib(n) - wanted) for n in others)
    assert mib(of_size(SHAPES["wide"], 1024).layers) >= 1024 or name != "wide"  # what is said to be a GiB is one


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.mpi
def test_the_quick_run_writes_what_machines_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.link", "--quick", "--out", str(tmp_path / "link.json")])
    assert program.main() == 0
    rows = json.loads((tmp_path / "link.json").read_text())
    ways = [(row["transport"], row["mode"]) for row in rows]
    assert ways == [(by, mode) for by in ("s3", "direct") for mode in ("one job per act", "jobs that stay")]
    for row in rows:
        assert set(row) >= KEYS
        assert row["changed_fraction"] == pytest.approx(0.03, rel=0.1)
        for crossed in row["wire_bytes_if"].values():  # once over each link, and little besides
            assert row["payload_bytes"] < crossed < 2 * row["payload_bytes"]
        if row["transport"] == "direct":
            assert row["fetched_bytes"] == {"direct": row["payload_bytes"], "store": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dir", "nowhere"], "no directory nowhere"),
        (["--mib", "-5"], "more than 0"),
        (["--repeat", "0"], "more than 0"),
        (["--rate", "nan"], "more than 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments_end_before_anything_is_set_up(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.link", *arguments])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
