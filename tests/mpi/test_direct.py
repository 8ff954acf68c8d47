"""The direct relay between two jobs of several ranks: streamed, resident, killed, cut, and without anybody there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dcr_mpi.catalog import Catalog
from dcr_mpi.jsonable import dumps
from dcr_mpi.store import open_store
from tests.direct.cutter import Cutter
from tests.mpi.staying import Staying, appear, full_transfer_of
from tests.world import LAUNCHERS, World, wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]
KINDS = sorted(LAUNCHERS)
FIRST = [*KINDS[:1], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]  # what differs is the library


def _direct(store: str = "after", **more: object) -> list[str]:
    keys = {"relay.transport": "direct", "direct.listen": "127.0.0.1", "direct.store": store}
    keys |= {name.replace("__", "."): str(value) for name, value in more.items()}
    return [f"--set={key}={value}" for key, value in keys.items()]


def _parts(world: World, version: int) -> list[Path]:
    return sorted((world.path / f"store/test/versions/{version:06d}").glob("parts/*"))


def _catalog(world: World) -> Catalog:
    return Catalog(open_store(str(world.path / "store")), "test")


def _until_gone(port: int) -> None:
    """Until nobody listens: a launcher may be gone before its ranks are."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"somebody still listens at {port}")


def _begin(path: Path, kind: str, sites: tuple[str, ...] = ("rollout",), kernels: str = "numpy") -> World:
    world = World(path, LAUNCHERS[kind], sites=sites, kernels=kernels)
    world.begin()
    return world


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize(("ranks", "site_ranks", "kernels"), [(3, 2, "numba"), (2, 5, "numpy")])
def test_from_job_to_job(
    tmp_path: Path, stay: Callable[..., Staying], kind: str, ranks: int, site_ranks: int, kernels: str
) -> None:
    """The store never sees a part; encode ends by itself once the site has them."""
    world = _begin(tmp_path, kind, kernels=kernels)
    new = world.synth(1)
    refit = stay(world, site_ranks, "refit", "--site", "rollout", "--wait", "120", *_direct("never"))
    encode = stay(world, ranks, "encode", str(new), *_direct("never", direct__serve_s=120))
    prepared, sealed = refit.result(), encode.result()
    payload = sealed["bytes"]["payload"]
    assert prepared["detail"]["fetched"] == {"direct": payload, "store": 0}
    assert sealed["served"] == {"missing": [], "sent": payload, "stored": False}
    assert _parts(world, 1) == []
    world.dcr(1, "commit")
    world.dcr(site_ranks, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)
    offers = _catalog(world).offers(1)
    assert len(offers) == 1 and len(offers[0].endpoints) == ranks


def test_jobs_that_stay_and_two_sites(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = _begin(tmp_path, KINDS[0], ("east", "west"))
    follows = [stay(world, 2, "follow", "--site", site, "--until", "3", *_direct()) for site in world.sites]
    publish = stay(world, 2, "publish", str(tmp_path / "run/step-*"), "--every", "--until", "3", *_direct())
    for step in (1, 2, 3):
        appear(world, step)
    assert publish.result() == {"act": "published", "version": 3, "published": 3}
    catalog = _catalog(world)
    for site, job in zip(world.sites, follows, strict=True):
        assert job.result()["applied"] == 3
        assert world.words(site) == full_transfer_of(world, 3)
        for version in (1, 2, 3):
            found, sealed = catalog.receipt(version, "prepared", site), catalog.sealed(version)[0]
            assert found is not None
            assert found[0].detail["fetched"] == {"direct": sealed.payload_bytes, "store": 0}
    for version in (1, 2, 3):
        assert len(_parts(world, version)) == len(catalog.sealed(version)[0].parts), "copied afterwards"
        served = [e["served"] for e in world.events("publish") if e["event"] == "end" and "served" in e]
        assert served  # the job's own log has it


def test_a_site_that_was_away_takes_the_copies(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    world = _begin(tmp_path, KINDS[0], ("east", "west"))
    east = stay(world, 2, "follow", "--site", "east", "--until", "2", *_direct())
    for step in (1, 2):
        encode = stay(world, 2, "encode", str(world.synth(step)), *_direct(direct__serve_s=100))
        wait_for(world.path / f"store/test/versions/{step:06d}/manifest.json")
        world.dcr(1, "commit", "--version", str(step), "--without", "west", "--wait", "100")
        assert encode.result()["served"]["missing"] == ["west"]
    east.result()
    assert world.dcr(2, "refit", "--site", "west", "--catch-up", *_direct())["replayed"] == [1, 2]
    assert world.words("west") == world.words("east") == world.full_transfer(2)


def _killed_while_it_builds(world: World, new: Path, transport: Sequence[str]) -> None:
    """Encode on three ranks, one of which is killed at the second part that it builds."""
    plain = world.command(3, "encode", str(new), *transport)
    at = plain.index("dcr_mpi")
    command = [*plain[:at], "tests.mpi.faulty", "compare", "1", "kill", *plain[at + 1 :]]
    killed = subprocess.run(
        command, env=world.environment(), cwd=world.path, text=True, capture_output=True, timeout=90, check=False
    )
    assert killed.returncode != 0
    assert (world.path / "tripped").exists()


@pytest.mark.parametrize("signed", [False, True])
def test_a_site_that_stays_outlives_a_publisher(tmp_path: Path, stay: Callable[..., Staying], signed: bool) -> None:
    """Every rank of the site goes on with the publisher that comes after it."""
    world = World(tmp_path, LAUNCHERS[KINDS[0]])
    if signed:
        public = world.dcr(1, "keygen", str(tmp_path / "key"))["public"]
        (tmp_path / "trust").write_text(f"publisher {public}\nsite rollout {public}\n")
        (tmp_path / "trust").chmod(0o600)
        world.config.write_text(world.config.read_text() + "keys: {file: key, trust: trust}\n")
    world.begin()
    new = world.synth(1)
    follow = stay(world, 3, "follow", "--site", "rollout", "--until", "1", *_direct())
    _killed_while_it_builds(world, new, _direct())
    encode = stay(world, 2, "encode", str(new), *_direct())
    world.dcr(1, "commit", "--version", "1", "--wait", "100")
    assert follow.result()["applied"] == 1
    assert encode.result()["served"]["missing"] == []
    assert world.words() == world.full_transfer(1)
    assert len(list((tmp_path / "store/test/versions/000001/direct").iterdir())) == 2


@pytest.mark.parametrize("transport", [[], _direct()], ids=["store", "direct"])
def test_a_site_that_stays_outlives_an_abort(
    tmp_path: Path, stay: Callable[..., Staying], transport: list[str]
) -> None:
    """Parts came, their publisher died, and the version is aborted: all ranks of the site take the next one."""
    world = _begin(tmp_path, KINDS[0])
    follow = stay(world, 3, "follow", "--site", "rollout", "--until", "2", *transport)
    _killed_while_it_builds(world, world.synth(1), transport)
    world.dcr(1, "commit", "--abort", "its publisher died")
    encode = stay(world, 2, "encode", str(world.synth(2)), *transport)
    world.dcr(1, "commit", "--version", "2", "--wait", "100")
    assert follow.result()["applied"] == 1
    encode.result()
    assert world.words() == world.full_transfer(2)
    (told,) = [e for e in world.events("follow") if e["event"] == "overtaken" and e["rank"] == 0]
    assert told["version"] == 1


@pytest.mark.parametrize("kind", FIRST)
def test_a_publisher_is_killed_in_the_midst_of_a_version(
    tmp_path: Path, stay: Callable[..., Staying], kind: str
) -> None:
    """One of its ranks, by SIGKILL, while it builds: the site ends within its wait, and the next two jobs finish."""
    world = _begin(tmp_path, kind)
    new = world.synth(1)
    refit = stay(world, 2, "refit", "--site", "rollout", "--wait", "6", *_direct(direct__retry_s=2))
    _killed_while_it_builds(world, new, _direct())
    begun = time.monotonic()
    assert refit.end(60) == 10, refit.log.read_text()
    assert time.monotonic() - begun < 25
    assert "version 1" in refit.log.read_text() and "Next: " in refit.log.read_text()
    again = stay(world, 3, "refit", "--site", "rollout", "--wait", "120", *_direct())
    sealed = stay(world, 3, "encode", str(new), *_direct()).result()
    assert again.result()["manifest_sha256"] == sealed["manifest_sha256"]
    world.dcr(1, "commit")
    world.dcr(2, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)


def test_a_publisher_is_killed_while_it_serves(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """All of the job, once it has sealed: nobody has a part. Run again, it serves the same ones."""
    world = _begin(tmp_path, KINDS[0])
    new = world.synth(1)
    encode = stay(world, 2, "encode", str(new), *_direct("never"))
    sealed = world.path / "store/test/versions/000001/manifest.json"
    manifest = wait_for(sealed)
    os.killpg(encode.process.pid, signal.SIGKILL)
    encode.process.wait()
    for endpoint in _catalog(world).offers(1)[0].endpoints:
        _until_gone(endpoint.port)
    late = world.run(2, "refit", "--site", "rollout", "--wait", "2", *_direct("never"))
    assert late.code == 10
    assert "let dcr encode run again" in late.error
    encode = stay(world, 3, "encode", str(new), *_direct("never"))
    prepared = world.dcr(2, "refit", "--site", "rollout", "--wait", "60", *_direct("never"))
    assert prepared["detail"]["fetched"]["store"] == 0
    assert encode.result()["served"]["missing"] == []
    assert sealed.read_bytes() == manifest
    assert len(_catalog(world).offers(1)) == 2
    world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)


def test_a_line_that_is_cut_again_and_again(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """A router between the two jobs that resets connections: what arrived is not sent again."""
    world = _begin(tmp_path, KINDS[0])
    new = world.synth(1)
    encode = stay(world, 2, "encode", str(new), *_direct("never"))
    store, catalog = world.path / "store/test/versions/000001", _catalog(world)
    wait_for(store / "manifest.json")
    (offer,) = catalog.offers(1)
    cutters = [Cutter(e.host, e.port, [3000, 5000, 4000, 6000]) for e in offer.endpoints]
    through: dict[str, Any] = json.loads((store / "direct/000000.json").read_bytes())
    for endpoint, cutter in zip(through["endpoints"], cutters, strict=True):
        endpoint["port"] = cutter.port
    path = store / "direct/000000.json"
    path.chmod(0o644)
    path.write_bytes(dumps(through))
    prepared = world.dcr(2, "refit", "--site", "rollout", *_direct("never"))
    sealed = encode.result()
    assert prepared["detail"]["fetched"] == {"direct": sealed["bytes"]["payload"], "store": 0}
    assert any(len(cutter.down) > 2 for cutter in cutters), "nothing was cut"
    world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)
    for cutter in cutters:
        cutter.close()


@pytest.mark.parametrize(("store", "code"), [("after", 0), ("also", 0), ("never", 10)])
def test_nobody_comes(tmp_path: Path, store: str, code: int) -> None:
    """Encode ends in bounded time; what is not in the store then is said to be nowhere."""
    world = _begin(tmp_path, KINDS[0])
    done = world.run(2, "encode", str(world.synth(1)), *_direct(store, direct__serve_s=1))
    assert done.code == code, done.error
    if code:
        assert "direct.store: never" in done.error
        assert _parts(world, 1) == []
        return
    assert done.json["served"] == {"missing": ["rollout"], "sent": 0, "stored": True}
    world.dcr(3, "refit", "--site", "rollout")  # by the store, as any other site
    world.dcr(1, "commit")
    world.dcr(1, "apply", "--site", "rollout")
    assert world.words() == world.full_transfer(1)


def test_a_rank_that_cannot_listen_ends_the_job(tmp_path: Path) -> None:
    world = _begin(tmp_path, KINDS[0])
    begun = time.monotonic()
    done = world.run(2, "encode", str(world.synth(1)), *_direct(), "--set=direct.listen=192.0.2.1")
    assert done.code == 2
    assert "direct.listen" in done.error
    assert time.monotonic() - begun < 30


def test_stopped_while_it_serves(tmp_path: Path, stay: Callable[..., Staying]) -> None:
    """A signal to stop is obeyed by all ranks at once, as elsewhere."""
    world = _begin(tmp_path, KINDS[0])
    encode = stay(world, 1, "encode", str(world.synth(1)), *_direct())
    wait_for(world.path / "store/test/versions/000001/manifest.json")
    encode.process.send_signal(signal.SIGTERM)
    assert encode.end(20) == 75


def test_run_goes_by_the_store(tmp_path: Path) -> None:
    world = _begin(tmp_path, KINDS[0])
    done = world.dcr(2, "run", str(world.synth(1)), *_direct())
    assert done["version"] == 1
    assert len(_parts(world, 1)) > 1
    assert world.words() == world.full_transfer(1)
