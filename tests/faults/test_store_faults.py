"""Whole commands through a store that fails in the middle of each act, then run again: nothing is lost, bits are equal.

Every request of a cycle against every fault is swept in ``tests/campaign/store.py``; here is a point of each kind, and
what a sweep does not ask: what crossed the link, servers that die, several ranks, signals.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.store import Sweep
from tests.cli.shell import finish
from tests.servers import BUCKET, S3Server
from tests.store.behind import Behind
from tests.store.conftest import use_credentials
from tests.store.faults import (
    FINAL,
    PASSING,
    altered,
    cut_upload,
    flipped,
    halved,
    hidden,
    invisible_for,
    reset,
    stall,
    then,
)
from tests.store.proxy import READS, Proxy, Rule

pytestmark = [pytest.mark.s3, pytest.mark.faults, pytest.mark.timeout(240)]
SITE = ("--site", "rollout")
ALWAYS = 1000
ONE_BY_ONE = ("--set", "relay.window=1")  # a part is journaled before the next is asked for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that these tests may kill."""
    running = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        yield running.start()
    finally:
        running.kill()


@pytest.fixture(autouse=True)
def credentials(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch, server.env())


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    between = Proxy(server.endpoint)
    yield between
    between.close()


@pytest.fixture
def world(tmp_path: Path, server: S3Server, proxy: Proxy) -> Behind:
    """Version 0 is at the site."""
    made = Behind(tmp_path, server, proxy)
    made.start()
    return made


@pytest.fixture
def sealed(world: Behind) -> Behind:
    """Version 1 is sealed."""
    world.must("encode", str(world.synth(1)))
    world.proxy.script()
    return world


def complete(world: Behind, *acts: str) -> None:
    """The rest of version 1, undisturbed: the bits of a full transfer."""
    world.proxy.script()
    for act in acts or ("refit", "commit", "apply"):
        world.must(*{"encode": ("encode", str(world.synth(1))), "commit": ("commit",)}.get(act, (act, *SITE)))
    assert world.words() == world.full_transfer(1)
    assert world.must("verify", *SITE)["version"] == 1


def fetched(proxy: Proxy) -> list[int]:
    """Indices of the parts that were asked for since the last script, in order."""
    found = [re.search(r"/parts/(\d+)-", seen.key) for seen in proxy.seen if seen.operation == "GetObject"]
    return [int(match[1]) for match in found if match]


def parts(world: Behind) -> list[str]:
    """Keys of version 1's parts, by index."""
    listed = world.server.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{world.prefix}/test/versions/000001/parts/")
    return sorted(entry["Key"] for entry in listed["Contents"])


def replica_files(world: Behind) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.replica().directory.glob("*.h5")}


# -- every kind of fault in whole cycles --------------------------------------------------------------------------


def test_some_request_of_each_act_meets_each_fault(tmp_path: Path, server: S3Server, proxy: Proxy) -> None:
    sweep = Sweep(tmp_path, server, proxy)
    brief = sorted(set(PASSING) - {"stall", "late", "body stalls", "slow down, with a wish"})
    for number, name in enumerate([*brief[::3], *FINAL, "hidden", "halved", "part changed"]):
        act = list(sweep.acts())[number % 4]
        sweep.cycle(act, name, 1 + number % 5)
    assert not sweep.failures
    assert sum(sweep.counts.values()) > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["lost reply", "hidden", "halved", "upload cut at its end"])
def test_every_request_of_a_cycle_meets(tmp_path: Path, server: S3Server, proxy: Proxy, name: str) -> None:
    sweep = Sweep(tmp_path, server, proxy)
    for act in sweep.acts():
        nth = 0
        while sweep.cycle(act, name, nth):
            nth += 1
    assert not sweep.failures
    assert sweep.counts[name] > 40


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "code"),
    [("slow down", 20), ("reset", 20), ("expired token", 21), ("clock", 21)],
)
def test_a_rank_whose_store_fails_ends_the_job(sealed: Behind, name: str, code: int) -> None:
    """Three ranks; one part's fetches fail for good: the job has the class's code, names rank and part, and goes on."""
    fault = PASSING[name] if name in PASSING else FINAL[name][0]
    sealed.proxy.script(Rule(fault, "Get", "/parts/000004-", times=ALWAYS))
    before = replica_files(sealed)
    began = time.monotonic()
    done = sealed.run(3, "refit", *SITE)
    assert done.code == code, done.error
    assert time.monotonic() - began < 40
    assert re.search(r"\[\d/3 .*part 4", done.error) and "Traceback" not in done.error
    assert replica_files(sealed) == before
    complete(sealed)


# -- what crosses the link ----------------------------------------------------------------------------------------


def test_a_failed_refit_leaves_only_the_missing_parts_to_fetch(sealed: Behind) -> None:
    count = len(parts(sealed))
    sealed.proxy.script(Rule(FINAL["expired token"][0], "Get", "/parts/", skip=3))
    done = sealed.here("refit", *SITE, *ONE_BY_ONE)
    assert done.code == 21 and "part 3" in done.error and "expired" in done.error, done.error
    assert fetched(sealed.proxy) == [0, 1, 2, 3]
    sealed.proxy.script()
    sealed.must("refit", *SITE, *ONE_BY_ONE)
    assert fetched(sealed.proxy) == list(range(3, count))
    sealed.proxy.script()
    sealed.must("refit", *SITE)
    assert fetched(sealed.proxy) == [], "all is prepared"
    complete(sealed, "commit", "apply")


def test_a_failed_encode_uploads_again_and_meets_its_own_parts(world: Behind) -> None:
    world.proxy.script(Rule(FINAL["expired token"][0], "Put", "/parts/", skip=3, times=ALWAYS))
    done = world.here("encode", str(world.synth(1)))
    assert done.code == 21 and "credentials" in done.error
    world.proxy.script()
    world.must("encode", str(world.synth(1)))
    assert world.proxy.count("Put", "/parts/", [412]) >= 3, "parts that had arrived were recognised"
    complete(world)


@pytest.mark.parametrize(
    "cut_at", ["body cut at 0", "body cut in the middle", "body cut at the last byte", "body stalls"]
)
def test_every_part_is_cut_once(sealed: Behind, cut_at: str) -> None:
    count = len(parts(sealed)) if cut_at != "body stalls" else 1
    sealed.proxy.script(*[Rule(PASSING[cut_at], "Get", f"/parts/{index:06d}-") for index in range(count)])
    sealed.must("refit", *SITE)
    assert all(rule.met for rule in sealed.proxy.rules)
    complete(sealed, "commit", "apply")


@pytest.mark.parametrize("change", [halved, flipped, lambda body: body + b"x"], ids=["cut", "changed", "longer"])
def test_a_part_that_is_wrong_on_the_way_is_fetched_again_once(sealed: Behind, change) -> None:  # type: ignore[no-untyped-def]
    """Nothing but the digest tells: lengths fit, checksums are stripped."""
    wrong = altered(change, trusted=True)
    sealed.proxy.script(Rule(wrong, "Get", "/parts/000002-"))
    sealed.must("refit", *SITE)
    assert fetched(sealed.proxy).count(2) == 2 and len(set(fetched(sealed.proxy))) == len(fetched(sealed.proxy)) - 1
    complete(sealed, "commit", "apply")


@pytest.mark.parametrize("change", [halved, flipped, lambda body: body + b"x"], ids=["cut", "changed", "longer"])
def test_a_part_that_is_wrong_in_the_store_is_refused(sealed: Behind, change) -> None:  # type: ignore[no-untyped-def]
    """Fetched, fetched once more, refused by name, replica untouched. Put right, the next run goes on from there."""
    client, key, before = sealed.server.client(), parts(sealed)[2], replica_files(sealed)
    good = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    client.put_object(Bucket=BUCKET, Key=key, Body=change(good))
    sealed.proxy.script()
    done = sealed.here("refit", *SITE, *ONE_BY_ONE)
    assert done.code == 11, done.error
    assert key.removeprefix(f"{sealed.prefix}/") in done.error and "part 2" in done.error
    assert "the second time too" in done.error and ". Next: " in done.error
    assert fetched(sealed.proxy) == [0, 1, 2, 2]
    assert replica_files(sealed) == before
    client.put_object(Bucket=BUCKET, Key=key, Body=good)
    sealed.proxy.script()
    sealed.must("refit", *SITE)
    assert sorted(fetched(sealed.proxy)) == list(range(2, len(parts(sealed))))
    complete(sealed, "commit", "apply")
    client.close()


# -- late visibility ----------------------------------------------------------------------------------------------


def test_a_part_that_is_shown_late(sealed: Behind) -> None:
    """Not yet; with --wait a bounded wait; then a clear end."""
    late = [Rule(hidden, READS, "/parts/000003-", times=ALWAYS)]
    sealed.proxy.script(*late)
    done = sealed.here("refit", *SITE)
    assert done.code == 10 and "part 3" in done.error and "--wait" in done.error, done.error
    done = sealed.here("refit", *SITE, "--wait", "0.5")
    assert done.code == 10 and "after 0.5 s" in done.error, done.error
    sealed.proxy.script(Rule(invisible_for(1.0), READS, "/parts/000003-", times=ALWAYS))
    sealed.must("refit", *SITE, "--wait", "20")
    complete(sealed, "commit", "apply")


@pytest.mark.parametrize("leaf", ["open.json", "manifest.json"])
def test_a_version_that_is_shown_late(sealed: Behind, leaf: str) -> None:
    sealed.proxy.script(Rule(invisible_for(0.7), READS, f"/versions/000001/{leaf}", times=ALWAYS))
    assert sealed.must("refit", *SITE, "--wait", "20")["version"] == 1
    complete(sealed, "commit", "apply")


def test_receipts_and_decisions_that_are_shown_late(sealed: Behind) -> None:
    sealed.must("refit", *SITE)
    sealed.proxy.script(Rule(invisible_for(0.7), READS, "/prepared/", times=ALWAYS))
    assert sealed.must("commit", "--wait", "20")["commit"] is True
    sealed.proxy.script(Rule(invisible_for(0.7), READS, "/versions/000001/decision.json", times=ALWAYS))
    sealed.must("apply", *SITE, "--wait", "20")
    complete(sealed, "apply")


# -- servers that die ---------------------------------------------------------------------------------------------

HALF = cut_upload(0.5)


@pytest.mark.parametrize("act", ["encode", "refit", "commit", "apply"])
def test_the_server_is_killed_and_comes_back(world: Behind, act: str) -> None:
    """In the middle of an upload or download; it is back within the deadline, and the command does not notice."""
    world.options |= {"attempts": ALWAYS, "backoff_s": 0.1, "deadline_s": 60}
    acts, dead = ["encode", "refit", "commit", "apply"], threading.Event()
    complete_until(world, acts[: acts.index(act)])

    def die() -> None:
        world.server.kill()
        dead.set()

    where = {
        "encode": Rule(then(die, HALF), "Put", "/parts/", skip=3),
        "refit": Rule(then(die, reset), "Get", "/parts/", skip=3),
        "commit": Rule(then(die, HALF), "Put"), "apply": Rule(then(die, reset), "Get", skip=1),
    }  # fmt: skip
    world.proxy.script(where[act])
    process = start(world, act)
    try:
        assert dead.wait(30)
        time.sleep(0.5)
        world.server.restart()
        done = finish(process)
    finally:
        process.kill()
    assert done.code == 0, done.error
    complete(world, *acts[acts.index(act) + 1 :], *(["apply"] if act == "apply" else []))


@pytest.mark.parametrize("act", ["encode", "refit"])
def test_the_server_is_killed_and_stays_away(world: Behind, act: str) -> None:
    """20 within the bounds; what was acknowledged is there when the server is."""
    acts = ["encode", "refit", "commit", "apply"]
    complete_until(world, acts[: acts.index(act)])
    fault = Rule(then(world.server.kill, HALF), "Put", "/parts/", skip=3)
    if act == "refit":
        fault = Rule(then(world.server.kill, reset), "Get", "/parts/", skip=3)
    world.proxy.script(fault)
    began = time.monotonic()
    try:
        done = world.here(*arguments(world, act))
        assert done.code == 20 and "gave up after" in done.error, done.error
        assert time.monotonic() - began < 30
    finally:
        world.server.restart()
    complete(world, *acts[acts.index(act) :])


def start(world: Behind, act: str) -> subprocess.Popen[str]:
    """The act in a process of its own, under way."""
    return subprocess.Popen(
        world.command(1, *arguments(world, act)),
        env=world.environment(), cwd=world.path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def arguments(world: Behind, act: str) -> tuple[str, ...]:
    return {"encode": ("encode", str(world.synth(1))), "commit": ("commit",)}.get(act, (act, *SITE))


def complete_until(world: Behind, acts: list[str]) -> None:
    for act in acts:
        world.must(*arguments(world, act))


# -- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "operation", "key"),
    [
        ("encode", "Put", "/parts/"),
        ("encode", "Head", ""),
        ("refit", "Get", "/parts/"),
        ("commit", "Get", "/prepared/"),
    ],
)
def test_a_signal_does_not_wait_for_a_stalled_store(world: Behind, act: str, operation: str, key: str) -> None:
    """Neither for a worker's request under way, nor does a library take the signal for an error of the network."""
    world.options |= {"read_timeout_s": 30, "connect_timeout_s": 30, "deadline_s": 100}
    acts = ["encode", "refit", "commit", "apply"]
    complete_until(world, acts[: acts.index(act)])
    world.proxy.script(Rule(stall, operation, key, times=ALWAYS))
    process = start(world, act)
    try:
        give_up = time.monotonic() + 30
        while not world.proxy.rules[0].met:
            assert time.monotonic() < give_up and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        done = finish(process)
        assert time.monotonic() - began < 10, "the stall lasts 30 seconds"
    finally:
        process.kill()
    assert done.code == 75, done.error
    assert "Preempted" in done.error and "Traceback" not in done.error
    complete(world, *acts[acts.index(act) :])


def test_events_tell_of_the_failure(sealed: Behind) -> None:
    """The log of the act ends with the error."""
    sealed.proxy.script(Rule(FINAL["clock"][0], "Get", "/parts/"))
    done = sealed.here("refit", *SITE)
    assert done.code == 21 and "clock is wrong" in done.error
    lines = (sealed.path / "events/refit-rank0000.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["error"] == "StoreDenied"
    complete(sealed)
