"""Jobs that stay: a publisher and two sites take version after version, are stopped and killed, and go on."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.errors import NotReady
from dcr_mpi.hooks import run_hook
from tests.mpi.staying import Staying, appear, full_transfer_of
from tests.world import LAUNCHERS, World

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
KIND = sorted(LAUNCHERS)[0] if LAUNCHERS else ""


def _until(what: Callable[[], bool], job: Staying) -> None:
    for _ in range(4000):
        if what():
            return
        assert job.process.poll() is None, job.log.read_text()[-3000:]
        time.sleep(0.05)
    raise AssertionError(job.log.read_text()[-3000:])


def _told(path: Path, site: str) -> list[str]:
    before = f"echo before $DCR_VERSION | tee -a {path / site}.hooks"
    after = f"echo after $DCR_SITE $DCR_VERSION >>{path / site}.hooks"
    return ["--metrics", str(path / f"{site}.prom"), "--before", before, "--after", after]


def test_versions_go_by_themselves(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = World(tmp_path, LAUNCHERS[KIND], sites=("east", "west"), kernels="numba")
    world.begin()
    follows = {
        site: stay(world, 2, "follow", "--site", site, "--until", "3", *_told(tmp_path, site)) for site in world.sites
    }
    publish = stay(world, 2, "publish", str(tmp_path / "run/step-*"), "--every", "--until", "3")
    for step in (1, 2, 3):
        appear(world, step)
    assert publish.result() == {"act": "published", "version": 3, "published": 3}
    for site, job in follows.items():
        assert job.result() == {"act": "followed", "site": site, "version": 3, "applied": 3}
        assert world.words(site) == full_transfer_of(world, 3)
        hooks = (tmp_path / f"{site}.hooks").read_text().splitlines()
        assert hooks == [line for v in (1, 2, 3) for line in (f"before {v}", f"after {site} {v}")]
        told = job.log.read_text()
        for version in (1, 2, 3):
            assert f"hook --before, version {version}: before {version}\n" in told
            assert f"version {version}, apply (rank 0 of 2): " in told
        metrics = (tmp_path / f"{site}.prom").read_text()
        assert f'dcr_version{{subject="{site}"}} 3\n' in metrics
        assert f'dcr_applied_total{{subject="{site}"}} 3\n' in metrics


def test_metrics_and_state_over_http(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    follow = stay(world, 2, "follow", "--site", "rollout", "--listen", "127.0.0.1:0")
    log = world.path / "events/follow-rank0000.jsonl"
    _until(lambda: log.exists() and "listening" in log.read_text(), follow)
    (port,) = [e["port"] for line in log.read_text().splitlines() if (e := json.loads(line))["event"] == "listening"]

    def get(page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=30) as answer:
            return str(answer.read().decode())

    _until(lambda: json.loads(get("/healthz"))["state"] == "waiting", follow)
    assert 'dcr_version{subject="rollout"} 0\n' in get("/metrics")
    assert f"on port {port}" in follow.log.read_text()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("/elsewhere")
    world.encode(1)
    _until(lambda: world.run(1, "commit").code == 0, follow)
    _until(lambda: json.loads(get("/healthz")).get("version") == 1, follow)
    text = get("/metrics")
    assert '# TYPE dcr_applied_total counter\ndcr_applied_total{subject="rollout"} 1\n' in text
    assert "# TYPE dcr_pause_seconds gauge\n" in text and "dcr_start_time_seconds{" in text
    taken = world.run(1, "follow", "--site", "rollout", "--listen", f"127.0.0.1:{port}")
    assert taken.code == 2 and "Address already in use" in taken.error
    assert world.run(1, "follow", "--site", "rollout", "--listen", "9400").code == 2


def test_the_newest_checkpoint_is_published_and_the_rest_passed_over(
    tmp_path: Path, stay: Callable[..., Staying]
) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    for step in (2, 9, 10):
        appear(world, step)
    publish = stay(world, 1, "publish", str(tmp_path / "run/step-*"), "--idle", "1")
    follow = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    follow.result()
    assert publish.result()["published"] == 1
    assert world.words() == full_transfer_of(world, 10)


@pytest.mark.parametrize("every", [(), ("--every",)])
def test_a_checkpoint_counts_once_all_shards_have_their_names(
    tmp_path: Path, stay: Callable[..., Staying], every: tuple[str, ...]
) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    for step in (1, 2):
        appear(world, step)
    late = sorted((tmp_path / "run/step-1").iterdir())[0]
    late.rename(tmp_path / "kept")
    follow = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    if every:  # takes each of them, so none after it before it is whole
        idle = stay(world, 1, "publish", str(tmp_path / "run/step-*"), *every, "--idle", "1")
        assert idle.result()["published"] == 0
        assert f"run/step-*: 2 there\n{tmp_path}/run/step-1: waiting for 1 of its" in idle.log.read_text()
        (tmp_path / "kept").rename(late)
    assert stay(world, 1, "publish", str(tmp_path / "run/step-*"), *every, "--until", "1").result()["version"] == 1
    assert follow.result()["version"] == 1
    assert world.words() == full_transfer_of(world, 1 if every else 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, None)])
def test_stopped_and_started_again(
    tmp_path: Path, stay: Callable[..., Staying], number: signal.Signals, code: int | None
) -> None:
    """Told to stop, or killed, while it waits and while it works: the next job goes on."""
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    follow = stay(world, 1, "follow", "--site", "rollout")
    appear(world, 1)
    world.dcr(1, "encode", str(tmp_path / "run/step-1"))
    told = tmp_path / "store/test/versions/000001/prepared/rollout.json"
    _until(told.exists, follow)
    follow.process.send_signal(number)
    ended = follow.end()
    assert ended == (code if code is not None else -number)
    world.dcr(1, "commit")
    again = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    assert again.result()["version"] == 1
    assert world.words() == full_transfer_of(world, 1)


def test_a_site_that_was_away_catches_up(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = World(tmp_path, LAUNCHERS[KIND], sites=("east", "west"))
    world.begin()
    east = stay(world, 1, "follow", "--site", "east", "--until", "2")
    for step in (1, 2):
        world.encode(step)
        world.dcr(1, "commit", "--without", "west", "--wait", "100")
    east.result()
    west = stay(world, 2, "follow", "--site", "west", "--until", "2", *_told(tmp_path, "west"))
    assert west.result()["version"] == 2
    assert (tmp_path / "west.hooks").read_text().splitlines()[-1] == "after west 2"
    assert 'dcr_version{subject="west"} 2\n' in (tmp_path / "west.prom").read_text()
    assert world.words("west") == world.words("east") == world.full_transfer(2)


def test_what_was_prepared_and_not_told_is_told(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """A job that ended between its own receipt and the store's: the decision waits for the one that follows it."""
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    world.encode(1)
    world.dcr(1, "refit", "--site", "rollout")
    (tmp_path / "store/test/versions/000001/prepared/rollout.json").unlink()
    follow = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    world.dcr(1, "commit", "--wait", "50")
    assert follow.result()["applied"] == 1
    assert world.words() == world.full_transfer(1)


def test_a_hook_that_fails_stops_before_the_apply(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    before = world.words()
    world.encode(1)
    follow = stay(world, 2, "follow", "--site", "rollout", "--before", "echo the engine is gone; exit 3")
    world.dcr(1, "commit", "--wait", "100")
    assert follow.end() == NotReady.code
    assert "exit code 3: the engine is gone" in follow.log.read_text()
    assert world.words() == before
    assert stay(world, 1, "follow", "--site", "rollout", "--until", "1").result()["version"] == 1
    assert world.words() == world.full_transfer(1)


def test_an_engine_that_was_paused_is_resumed_by_the_next_job(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """A job ended between the two hooks: the second is called once the replica is whole."""
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    world.encode(1)
    first = stay(world, 1, "follow", "--site", "rollout", "--before", "true", "--after", "exit 3")
    world.dcr(1, "commit", "--wait", "50")
    assert first.end() == NotReady.code
    assert world.words() == world.full_transfer(1)
    without = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    assert without.result()["applied"] == 0 and "--after is still due" in without.log.read_text()
    resume = ("--before", "exit 4", "--after", f"echo resume $DCR_VERSION >>{tmp_path}/hooks")
    again = stay(world, 2, "follow", "--site", "rollout", *resume, "--until", "1")
    assert again.result() == {"act": "followed", "site": "rollout", "version": 1, "applied": 0}
    stay(world, 1, "follow", "--site", "rollout", *resume, "--until", "1").result()
    assert (tmp_path / "hooks").read_text() == "resume 1\n", "once"


def test_a_publisher_goes_on_with_what_it_sealed(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """It was killed before the decision; a newer checkpoint is there when it comes back."""
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    appear(world, 1)
    world.dcr(1, "encode", str(tmp_path / "run/step-1"))
    appear(world, 2)
    follow = stay(world, 1, "follow", "--site", "rollout", "--until", "2")
    publish = stay(world, 2, "publish", str(tmp_path / "run/step-*"), "--until", "2")
    assert publish.result() == {"act": "published", "version": 2, "published": 2}
    follow.result()
    assert world.words() == full_transfer_of(world, 2)
    appear(world, 3)
    done = stay(world, 1, "publish", str(tmp_path / "run/step-*"), "--until", "2")
    assert done.result() == {"act": "published", "version": 2, "published": 0}


@pytest.mark.parametrize(
    ("status", "fails"), [(204, ""), (503, "status 503"), (302, "status 302"), (303, "status 303"), (307, "status 307")]
)
def test_a_hook_may_be_a_post(status: int, fails: str) -> None:
    """A redirect is a failure: followed, it would be a GET without the facts, and the engine would not be paused."""
    got: list[tuple[str, Any]] = []

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            got.append((self.path, None))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/pause"
        if fails:
            with pytest.raises(NotReady, match=fails):
                run_hook("before", url, {"site": "s", "version": "4"}, 20)
        else:
            run_hook("before", url, {"site": "s", "version": "4"}, 20)
        thread.join(20)
    assert got == [("/pause", {"site": "s", "version": "4"})]


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("sleep 30", "nothing within 0.2 s"),
        ("http://127.0.0.1:9/", "refused"),
        ("http://", "no host"),
        ("http://127.0.0.1:x/", "nonnumeric port"),
        ("http://[::1", "Invalid IPv6"),
    ],
)
def test_what_hooks_may_come_to(hook: str, words: str) -> None:
    with pytest.raises(NotReady, match=words):
        run_hook("after", hook, {"version": "1"}, 0.2)


def test_a_publishers_hook_that_failed_is_called_again(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    appear(world, 1)
    follow = stay(world, 1, "follow", "--site", "rollout", "--until", "1")
    hook = f"echo $DCR_VERSION $DCR_COMMITTED $(basename $DCR_CHECKPOINT) >>{tmp_path}/hooks"
    asked = ("publish", str(tmp_path / "run/step-*"), "--until", "1", "--after")
    failed = stay(world, 2, *asked, f"{hook}; exit 3")
    assert failed.end() == NotReady.code and "the hook is called once more" in failed.log.read_text()
    assert stay(world, 2, *asked, hook).result()["version"] == 1
    assert stay(world, 2, *asked, hook).result()["version"] == 1
    assert (tmp_path / "hooks").read_text() == "1 true step-1\n" * 2
    follow.result()


def test_what_cannot_be_is_refused_before_the_work(tmp_path: Path) -> None:
    world = World(tmp_path, LAUNCHERS[KIND])
    world.begin()
    world.encode(1)
    world.dcr(1, "refit", "--site", "rollout")
    world.dcr(1, "commit")
    before = world.words()
    (tmp_path / "plain").write_text("")
    wrong = [("--metrics", str(tmp_path / place)) for place in ("plain/x.prom", "nowhere/x.prom", "")]
    for options in [*wrong, ("--hook-s", "1e10")]:
        refused = world.run(1, "follow", "--site", "rollout", "--until", "1", *options)
        assert refused.code and options[0] in refused.error
    assert world.words() == before and not (tmp_path / "nowhere").exists()
    unquoted = world.run(1, "publish", "run/step-1", "run/step-2")
    assert unquoted.code == 2 and "quote it" in unquoted.error


def test_a_hook_that_answers_something_else_than_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(NotReady, match="what"):
            run_hook("before", f"http://127.0.0.1:{server.getsockname()[1]}/", {"version": "1"}, 20)
        thread.join(20)


def _living(group: str) -> list[str]:
    """Processes of a group that run; one that is dead and that nobody has asked after yet does not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its, *_ = path.read_text().rpartition(")")[2].split()
            found += [path.parent.name] if its == group and state not in "ZX" else []
    return found


def test_what_a_hook_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves running holds nobody up; of one that took too long nothing goes on; it gets no key."""
    monkeypatch.setenv("DCR_KEY", "secret")
    run_hook("before", 'sleep 60 & echo $! >pid; test -z "$DCR_KEY"'.replace("pid", str(tmp_path / "a")), {}, 30)
    os.kill(int((tmp_path / "a").read_text()), signal.SIGKILL)
    with pytest.raises(NotReady, match="nothing within 1 s"):
        run_hook("before", f"(echo $$ >{tmp_path / 'b'}; sleep 60); true", {}, 1)
    group, give_up = (tmp_path / "b").read_text().strip(), time.monotonic() + 10
    while _living(group):
        assert time.monotonic() < give_up, "what the hook started goes on"
        time.sleep(0.05)
