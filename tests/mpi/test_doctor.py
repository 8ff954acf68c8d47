"""dcr doctor and its ranks: under each MPI's launcher, under the wrong one, and where ranks are not of one mind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.test_directory import can_unshare
from tests.world import LAUNCHERS, ROOT, Done, World

pytestmark = pytest.mark.mpi
KINDS = sorted(LAUNCHERS)
BOTH = pytest.mark.skipif(len(KINDS) < 2, reason="needs the mpirun of two MPIs")
DOCTOR = ("-m", "dcr_mpi", "doctor", "--json")


def run(kind: str, *argv: str, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Any command line in the environment that an MPI's own mpirun wants; it is the first on PATH."""
    launcher = LAUNCHERS[kind]
    path = f"{Path(launcher.path).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    python = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    full = {**launcher.environment(), "PATH": path, "PYTHONPATH": python, **(env or {})}
    done = subprocess.run(argv, cwd=cwd, env=full, text=True, capture_output=True, timeout=100, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def levels(done: Done) -> dict[str, str]:
    """Level by check; what is not good counts."""
    out: dict[str, str] = {}
    for f in done.json["findings"]:
        if f["level"] != "ok" or f["check"] not in out:
            out[f["check"]] = f["level"]
    return out


def told(done: Done, check: str, level: str = "fail") -> str:
    return next(
        f"{f['found']} {f['where']}" for f in done.json["findings"] if (f["check"], f["level"]) == (check, level)
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A configuration, and the directories that it names."""
    made = World(tmp_path, LAUNCHERS[KINDS[0]])
    for folder in ("store", "state", "replica-rollout"):
        (tmp_path / folder).mkdir()
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_the_launcher_on_the_path_is_tried(kind: str, world: World) -> None:
    done = run(kind, sys.executable, *DOCTOR, cwd=world.path)
    assert done.code == 0, done.out + done.error
    assert levels(done)["launcher"] == "ok" and "2 ranks that met" in told(done, "launcher", "ok")


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_see_each_other(kind: str, world: World) -> None:
    done = run(kind, LAUNCHERS[kind].path, "-n", "3", sys.executable, *DOCTOR, cwd=world.path)
    assert done.code == 0, done.out + done.error
    assert len(done.out.strip().splitlines()) == 1, "one rank tells"
    assert done.json["ranks"] == 3 and levels(done)["ranks"] == "ok" and "launcher" not in levels(done)
    assert sorted(p.name for p in world.path.rglob("*") if p.is_file()) == ["dcr.yaml"], "nothing is left"


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_the_mpirun_of_another_mpi(kind: str, world: World) -> None:
    """First on PATH; and when it has started the ranks."""
    other = next(k for k in KINDS if k != kind)
    library = {name: value for name, value in LAUNCHERS[other].env.items() if name != "MPI4PY_LIBMPI"}
    library |= {"MPI4PY_LIBMPI": LAUNCHERS[other].env.get("MPI4PY_LIBMPI", "")}
    library = {name: value for name, value in library.items() if value}
    if "MPI4PY_LIBMPI" not in library:  # that of the wheel, which mpi4py finds by itself where nothing else is named
        library["MPI4PY_LIBMPI"] = str(next(Path(sys.prefix, "lib").glob("libmpi.so.*")))
    alone = run(kind, sys.executable, *DOCTOR, cwd=world.path, env=library)
    assert alone.code == 41 and levels(alone)["launcher"] == "fail" and "alone" in told(alone, "launcher")
    started = run(kind, LAUNCHERS[kind].path, "-n", "2", sys.executable, *DOCTOR, cwd=world.path, env=library)
    assert started.code != 0
    assert levels(started)["ranks"] == "fail" and "launcher" in told(started, "ranks"), started.out


@pytest.mark.parametrize("kind", KINDS[:1])
def test_no_mpi_library(kind: str, world: World) -> None:
    done = run(kind, sys.executable, *DOCTOR, cwd=world.path, env={"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"})
    assert done.code == 41 and levels(done)["mpi library"] == "fail"


@pytest.mark.skipif("openmpi" not in KINDS or os.geteuid() != 0, reason="needs Open MPI, and root")
def test_a_launcher_that_refuses(world: World) -> None:
    """Open MPI does not start anything as root, unless it is told twice."""
    bare = {name: "" for name in LAUNCHERS["openmpi"].env if "ROOT" in name}
    done = run("openmpi", "env", *(f"-u{name}" for name in bare), sys.executable, *DOCTOR, cwd=world.path)
    assert done.code == 41 and "root" in told(done, "launcher")


@pytest.mark.parametrize("kind", KINDS[:1])
def test_more_ranks_than_configured_and_than_cores(kind: str, world: World) -> None:
    mpirun = LAUNCHERS[kind].path
    done = run(kind, mpirun, "-n", "2", sys.executable, *DOCTOR, "--set", "ranks=5", cwd=world.path)
    assert done.code != 0 and "2 ranks" in told(done, "ranks")
    done = run(kind, mpirun, "-n", "2", "taskset", "-c", "0", sys.executable, *DOCTOR, cwd=world.path)
    assert done.code == 0 and "1 for 2 ranks" in told(done, "cores", "warn")


@pytest.mark.parametrize("kind", KINDS[:1])
def test_ranks_of_two_minds(kind: str, world: World) -> None:
    """Another configuration, and another version of a package, at one of them."""
    (world.path / "old/xxhash-0.0.1.dist-info").mkdir(parents=True)
    metadata = world.path / "old/xxhash-0.0.1.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: xxhash\nVersion: 0.0.1\n")
    first = (LAUNCHERS[kind].path, "-n", "1", sys.executable, *DOCTOR)
    other = (":", "-n", "1", "env", f"PYTHONPATH={world.path / 'old'}:{ROOT}", sys.executable, *DOCTOR)
    done = run(kind, *first, *other, "--set", "codec.level=3", cwd=world.path)
    assert done.code == 2 and levels(done)["ranks"] == "fail"
    wrong = [f["found"] for f in done.json["findings"] if f["level"] == "fail"]
    assert len(wrong) == 2 and "xxhash of the ranks" in wrong[0] and "0.0.1 at rank 1" in wrong[0]
    assert "configuration of the ranks" in wrong[1]


def test_a_configuration_that_one_rank_does_not_find(world: World) -> None:
    """It is told at once: nobody waits for that rank in what needs a configuration."""
    first = (LAUNCHERS[KINDS[0]].path, "-n", "1", sys.executable, *DOCTOR)
    done = run(KINDS[0], *first, ":", "-n", "1", sys.executable, *DOCTOR, "-c", "nowhere.yaml", cwd=world.path)
    assert done.code == 2 and "nowhere.yaml" in told(done, "configuration") and "rank 1" in told(done, "configuration")
    assert levels(done)["store"] == "ok" and levels(done)["ranks"] == "fail"


@pytest.mark.skipif(not can_unshare() or os.geteuid() != 0, reason="needs root, and mount and UTS namespaces")
@pytest.mark.parametrize("kind", KINDS[:1])
def test_a_replica_that_only_one_host_has(kind: str, world: World) -> None:
    """The second rank lives in a host of its own name, with another file system at the replica's place."""
    hide = f'hostname elsewhere && mount -t tmpfs none {world.path / "replica-rollout"} && exec "$0" "$@"'
    apart = (":", "-n", "1", shutil.which("unshare") or "unshare", "-um", "sh", "-c", hide)
    argv = (LAUNCHERS[kind].path, "-n", "1", sys.executable, *DOCTOR, *apart, sys.executable, *DOCTOR)
    done = run(kind, *argv, cwd=world.path)
    assert done.code == 30, done.out + done.error
    assert done.json["hosts"] == sorted(done.json["hosts"]) and "elsewhere" in done.json["hosts"]
    unseen = told(done, "sites.rollout.replica")
    assert "does not see" in unseen and "rank 1 on elsewhere" in unseen
    assert "trainer.state" in levels(done) and levels(done)["store"] == "ok"
