"""Events and progress: what is logged and shown, by a clock in the test's hand; and that a log never fails a job."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.events import Events
from dcr_mpi.progress import Progress

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def open_events(directory: Path | None, clock: Clock, stream: Any = None, **more: Any) -> Events:
    return Events(directory, "encode", "site", stream=stream or io.StringIO(), clock=clock, now=lambda: 0.25, **more)


# -- lines ------------------------------------------------------------------------------------------------------------


def test_lines_of_a_rank(tmp_path: Path, clock: Clock) -> None:
    with open_events(tmp_path / "deep" / "logs", clock, rank=3, size=5) as events:
        events.emit("relayed", version=7, bytes=np.int64(12), ratio=np.float32(0.5), device="cpu", where=Path("/x"))
        clock.now += 2
    path = tmp_path / "deep" / "logs" / "encode-rank0003.jsonl"
    begin, relayed, end = lines(path)
    head = {"ts": "1970-01-01T00:00:00.250000+00:00", "act": "encode", "subject": "site", "rank": 3, "size": 5}
    assert begin == {**head, "event": "begin"}
    assert relayed == {
        **head,
        "event": "relayed",
        "version": 7,
        "bytes": 12,
        "ratio": 0.5,
        "device": "cpu",
        "where": "/x",
    }
    assert end == {**head, "event": "end", "wall": 2.0, "seconds": {}, "bytes": {}, "dropped": 0}
    assert path.read_bytes().endswith(b"\n")


def test_a_field_cannot_pose_as_the_head(tmp_path: Path, clock: Clock) -> None:
    events = open_events(tmp_path, clock)
    events.emit("x", rank=9, subject="other", ts="never")
    (line,) = lines(events.path)  # type: ignore[arg-type]
    assert (line["rank"], line["subject"]) == (0, "site") and line["ts"].startswith("1970")


def test_names_of_any_kind_stay_on_one_line(tmp_path: Path, clock: Clock) -> None:
    name = "a\nb\u2028\udcffü"
    events = open_events(tmp_path, clock)
    events.emit("tensor", name=name)
    assert [line["name"] for line in lines(events.path)] == [name]  # type: ignore[arg-type]


def test_runs_add_up_and_a_torn_line_costs_no_other(tmp_path: Path, clock: Clock) -> None:
    with open_events(tmp_path, clock) as events:
        pass
    assert events.path is not None
    with events.path.open("ab") as torn:
        torn.write(b'{"ts": "a run that was killed in the mid')
    with open_events(tmp_path, clock) as again:
        again.emit("second")
    raw = events.path.read_text().splitlines()
    assert [json.loads(line)["event"] for k, line in enumerate(raw) if k != 2] == [
        "begin",
        "end",
        "begin",
        "second",
        "end",
    ]


def test_an_error_ends_the_log(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(ValueError, match="broken"), open_events(tmp_path, clock) as events, events.stage("upload", 10):
        clock.now += 1
        raise ValueError("broken")
    _, stage, end = lines(events.path)  # type: ignore[arg-type]
    assert (stage["stage"], stage["error"], stage["bytes"], stage["seconds"]) == ("upload", "ValueError", 0, 1.0)
    assert (end["error"], end["message"], end["seconds"], end["bytes"]) == ("ValueError", "broken", {"upload": 1.0}, {})


def test_no_directory_no_lines_but_times(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_events(None, clock) as events, events.stage("a", 3):
        clock.now += 1
    assert events.seconds() == {"a": 1.0} and events.bytes() == {"a": 3} and not list(tmp_path.iterdir())


def test_threads_and_processes_append_whole_lines(tmp_path: Path) -> None:
    """Two processes of one rank number (a requeue and a resubmit) and several threads in each."""
    code = (
        "import sys, threading; from pathlib import Path; from dcr_mpi.events import Events\n"
        "with Events(Path(sys.argv[1]), 'encode', sys.argv[2]) as events:\n"
        "    work = lambda k: [events.emit('x', thread=k, n=n, pad='p' * 3000) for n in range(200)]\n"
        "    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]\n"
        "    [t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who], cwd=ROOT) for who in "ab"]
    assert [child.wait(60) for child in children] == [0, 0]
    found = [
        (x["subject"], x["thread"], x["n"]) for x in lines(tmp_path / "encode-rank0000.jsonl") if x["event"] == "x"
    ]
    assert sorted(found) == [(who, k, n) for who in "ab" for k in range(4) for n in range(200)]


# -- a log is never worth a job ---------------------------------------------------------------------------------------


def test_directory_that_cannot_be_made(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    stream = io.StringIO()
    with open_events(tmp_path / "file" / "logs", clock, stream) as events, events.stage("a"):
        clock.now += 1
    assert events.dropped == 3 and events.seconds() == {"a": 1.0}
    assert stream.getvalue().count("\n") == 1 and "the work goes on" in stream.getvalue()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "encode-rank0000.jsonl").symlink_to("/dev/full")
    stream = io.StringIO()
    with open_events(tmp_path, clock, stream) as events:
        events.emit("a")
    assert events.dropped == 3 and stream.getvalue().count("ENOSPC") + stream.getvalue().count("No space left") == 1


def test_a_line_cut_short_by_a_full_disk_is_ended_once_there_is_room(tmp_path: Path) -> None:
    """A real limit: RLIMIT_FSIZE cuts a write as a full disk does, and is lifted again."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from dcr_mpi.events import Events\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with Events(Path(sys.argv[1]), 'encode', 'site') as events:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))\n"
        "    [events.emit('lost', pad='p' * 300) for _ in range(5)]\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    events.emit('room')\n"
        "print(events.dropped)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    dropped = int(done.stdout)
    whole, torn = [], 0
    for line in (tmp_path / "encode-rank0000.jsonl").read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            torn += 1
    events = [line["event"] for line in whole]
    assert events[0] == "begin" and events[-2:] == ["room", "end"] and torn == 1
    assert dropped == 5 - events.count("lost") > 0 and whole[-1]["dropped"] == dropped
    assert done.stderr.count("\n") == 1


# -- stages -----------------------------------------------------------------------------------------------------------


def test_stages_accumulate_and_add_up(tmp_path: Path, clock: Clock) -> None:
    with open_events(tmp_path, clock) as events:
        for size in (10, 20):
            with events.stage("outer"):
                clock.now += 1
                with events.stage("inner", size):
                    clock.now += 4
                    with events.stage("innermost"):
                        clock.now += 16
                with events.stage("inner", 1):
                    clock.now += 64
        assert events.seconds() == {"innermost": 32.0, "inner": 136.0, "outer": 2.0}
        assert sum(events.seconds().values()) == clock.now - 100 and events.bytes() == {"inner": 32}
    log = [(x["stage"], x["seconds"], x["bytes"]) for x in lines(events.path) if x["event"] == "stage"]  # type: ignore[arg-type]
    assert log[:4] == [("innermost", 16.0, 0), ("inner", 4.0, 10), ("inner", 64.0, 1), ("outer", 1.0, 0)]


def test_a_stage_of_another_thread_takes_nothing_from_this_one(clock: Clock) -> None:
    events = open_events(None, clock)

    def other() -> None:
        with events.stage("decode", 5):
            clock.now += 3

    with events.stage("relay"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        clock.now += 1
    assert events.seconds() == {"decode": 3.0, "relay": 4.0} and events.bytes() == {"decode": 5}


def test_what_is_handed_out_is_a_copy(clock: Clock) -> None:
    events = open_events(None, clock)
    with events.stage("a", 1):
        clock.now += 1
    events.seconds()["a"] = 9
    events.bytes()["a"] = 9
    assert events.seconds() == {"a": 1.0} and events.bytes() == {"a": 1}


# -- progress ---------------------------------------------------------------------------------------------------------


def test_lines_by_time(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(1000 * MIB, "encode", 5, stream, clock=clock)
    for _ in range(20):
        clock.now += 1
        progress.add(MIB)  # 2 % in 20 s: only time makes a line due
    assert stream.getvalue().splitlines() == [
        "encode: 0%, 5.00 MiB of 1000 MiB, 1.00 MiB/s, 16 min 35 s left",
        "encode: 1%, 10.0 MiB of 1000 MiB, 1.00 MiB/s, 16 min 30 s left",
        "encode: 2%, 15.0 MiB of 1000 MiB, 1.00 MiB/s, 16 min 25 s left",
        "encode: 2%, 20.0 MiB of 1000 MiB, 1.00 MiB/s, 16 min 20 s left",
    ]


def test_lines_by_share_but_not_within_a_second(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(100 * MIB, "encode", 1000, stream, clock=clock)
    for _ in range(99):
        clock.now += 0.4
        progress.add(MIB)
    shares = [int(line.split()[1].rstrip("%,")) for line in stream.getvalue().splitlines()]
    assert shares == list(range(5, 100, 5))
    clock.now, quick = 0.0, io.StringIO()
    progress = Progress(100 * MIB, "encode", 1000, quick, clock=clock)
    for _ in range(100):
        clock.now += 0.001
        progress.add(MIB)
    progress.done()
    assert quick.getvalue() == "encode: 100 MiB in 0.10 s, 1000 MiB/s\n"


def test_no_control_characters_without_a_terminal(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(10 * MIB, "encode", 1, stream, clock=clock)
    for _ in range(10):
        clock.now += 1
        progress.add(MIB)
    progress.done()
    progress.close()
    assert len(stream.getvalue().splitlines()) == 10
    assert not set(stream.getvalue()) & {"\r", "\x1b", "\b"}


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(10 * MIB, "encode", 1, stream, clock=clock)
    for _ in range(5):
        clock.now += 1
        progress.add(MIB)
        progress.add(0)  # within a tenth of a second: not drawn again
    text = stream.getvalue()
    assert text.count("\r") == 5 and "\n" not in text
    assert text.endswith(
        "\r[############............] encode: 50%, 5.00 MiB of 10.0 MiB, 1.00 MiB/s, 5.00 s left\x1b[K"
    )
    progress.done()
    assert stream.getvalue().endswith("\rencode: 5.00 MiB in 5.00 s, 1.00 MiB/s\x1b[K\n")


def test_an_error_leaves_the_bar_a_line_of_its_own(clock: Clock) -> None:
    stream = Terminal()
    with pytest.raises(ValueError, match="x"), open_events(None, clock, stream) as events:
        clock.now += 1
        progress = events.progress(10, "encode")
        clock.now += 1
        progress.add(5)
        raise ValueError("x")
    assert stream.getvalue().endswith("\n")


@pytest.mark.parametrize(
    ("total", "every_s", "enabled"), [(0, 5.0, True), (100 * MIB, 0.0, True), (100 * MIB, 5.0, False)]
)
def test_nothing_is_shown(clock: Clock, total: int, every_s: float, enabled: bool) -> None:
    for stream in (io.StringIO(), Terminal()):
        progress = Progress(total, "encode", every_s, stream, enabled, clock=clock)
        for _ in range(3):
            clock.now += 100
            progress.add(total // 4)
        progress.done()
        assert stream.getvalue() == ""


def test_more_than_the_total_is_not_more_than_all(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(10, "encode", 1, stream, clock=clock)
    clock.now += 1
    progress.add(25)
    assert "] encode: 100%" in stream.getvalue() and "0.00 s left" in stream.getvalue()


def test_a_stream_that_breaks_is_left_alone(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(10 * MIB, "encode", 1, stream, clock=clock)
    stream.close()
    clock.now += 2
    progress.add(MIB)
    progress.done()


def test_ranks_log_and_rank_0_shows(tmp_path: Path, clock: Clock) -> None:
    for rank in (0, 1):
        stream = io.StringIO()
        events = open_events(tmp_path, clock, stream, rank=rank, size=2)
        progress = events.progress(100, "encode")
        clock.now += 6
        progress.add(50)
        (line,) = lines(events.path)  # type: ignore[arg-type]
        assert (line["event"], line["label"], line["done"], line["total"]) == ("progress", "encode", 50, 100)
        assert stream.getvalue().startswith("encode (rank 0 of 2): 50%") == (rank == 0)
        assert bool(stream.getvalue()) == (rank == 0)
        events.progress(100, "encode", 7).done()
        assert stream.getvalue().endswith("version 7, encode (rank 0 of 2): 0 B in 0.00 s\n") == (rank == 0)


def test_threads_lose_no_bytes(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(4000, "encode", 5, stream, clock=clock)

    def work() -> None:
        for _ in range(1000):
            progress.add(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 2
    progress.done()
    assert stream.getvalue() == "encode: 3.91 KiB in 2.00 s, 1.95 KiB/s\n"
