"""One rank fails in one phase: what the job must do then, and what the next run must find."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.launcher import Launcher
from dcr_mpi.acts.replica import journal
from dcr_mpi.journal import describe
from tests.world import World

ACTS = {
    "refit": ("fetch", "send", "receive", "journal", "agree"),
    "encode": ("compare", "upload", "seal"),
    "apply": ("before", "midway"),
}
OWNERS = ("receive", "journal", "midway")  # of shards: the site has two, so the ranks from 2 on never come there
WORKERS = ("fetch", "journal")  # phases in which a part is at hand that only the caller can name
HOWS = ("kill", "error", "bug", "exit", "_exit", "stop")
SILENCE_S = 15


@dataclass(frozen=True)
class Case:
    """``how`` a rank ends in a ``phase`` of an ``act``."""

    act: str
    phase: str
    rank: int
    how: str
    ranks: int = 3

    def __str__(self) -> str:
        return f"{self.act} {self.phase} {self.how} rank {self.rank} of {self.ranks}"


def cases(ranks: int) -> list[Case]:
    """Every phase on every rank that comes there, in every way."""
    return [
        Case(act, phase, rank, how, ranks)
        for act, phases in ACTS.items()
        for phase in phases
        for rank in range(2 if phase in OWNERS else ranks)
        for how in HOWS
    ]


class Bench:
    """Worlds before encode, before refit and before apply, and what undisturbed runs make of them."""

    def __init__(self, path: Path, launcher: Launcher) -> None:
        self._path, self._launcher = path, launcher

    @cached_property
    def encode(self) -> World:
        (self._path / "encode").mkdir(parents=True)
        world = World(self._path / "encode", self._launcher)
        world.begin()
        world.synth(1)
        return world

    @cached_property
    def refit(self) -> World:
        world = self.copy(self.encode, "refit")
        world.encode(1)
        return world

    @cached_property
    def apply(self) -> World:
        world = self.copy(self.refit, "apply")
        world.dcr(1, "refit", "--site", "rollout")
        world.dcr(1, "commit")
        return world

    def copy(self, world: World, name: str) -> World:
        shutil.copytree(world.path, self._path / name)
        return World(self._path / name, self._launcher)

    def sealed(self) -> bytes:
        return (self.refit.path / "store/test/versions/000001/manifest.json").read_bytes()

    def parts(self, world: World) -> dict[int, set[int]]:
        """Parts whose frames are whole in some journal of version 1, by shard."""
        found: dict[int, set[int]] = {0: set(), 1: set()}
        for shard, parts in found.items():
            for folder in world.replica().sets(1):
                path = journal(folder, shard)
                if path.exists() and path.stat().st_size:
                    parts.update(row["part"] for row in describe(path)["parts"])  # type: ignore[attr-defined]
        return found

    def missing(self, world: World) -> int:
        """Bytes of the parts that a refit must still fetch."""
        whole, have = self.parts(self.apply), self.parts(world)
        wanted = set().union(*(whole[shard] - have[shard] for shard in whole))
        folder = world.path / "store/test/versions/000001/parts"
        return sum(p.stat().st_size for p in folder.iterdir() if int(p.name[:6]) in wanted)


def try_case(bench: Bench, case: Case) -> tuple[bool, list[str]]:
    """Whether the rank came to its phase, and what was not as it must be."""
    world = bench.copy(getattr(bench, case.act), f"{case}".replace(" ", "-"))
    try:
        wrong = _disturbed(world, case)
        tripped = (world.path / "tripped").exists()
        if tripped:
            wrong += _again(bench, world, case)
        return tripped, [f"{case}: {text}" for text in wrong]
    finally:
        shutil.rmtree(world.path)


def _arguments(world: World, act: str) -> tuple[str, ...]:
    return ("encode", str(world.path / "model/step-000001")) if act == "encode" else (act, "--site", "rollout")


def _disturbed(world: World, case: Case) -> list[str]:
    before = world.words()
    patience = [f"--set=relay.{key}_s={SILENCE_S}" for key in ("timeout", "patience")] if case.how == "stop" else []
    plain = world.command(case.ranks, *_arguments(world, case.act), *patience)
    at = plain.index("dcr_mpi")
    command = [*plain[:at], "tests.mpi.faulty", case.phase, str(case.rank), case.how, *plain[at + 1 :]]
    try:
        done = subprocess.run(
            command, env=world.environment(), cwd=world.path, text=True, capture_output=True, timeout=90, check=False
        )
    except subprocess.TimeoutExpired:
        return ["some rank did not end within 90 s"]
    if not (world.path / "tripped").exists():
        return [] if done.returncode == 0 else [f"ended with {done.returncode} without a fault: {done.stderr[-500:]}"]
    wrong = _ended(world, case, done.returncode, done.stderr)
    if case.act != "apply" and world.words() != before:
        wrong.append("the replica changed")
    return wrong


def _ended(world: World, case: Case, code: int, said: str) -> list[str]:
    """The job's end: its code, what it said, and that no rank is left."""
    wrong = []
    expected = {"error": 11, "bug": 1, "exit": 1, "stop": 40}.get(case.how)
    if code == 0 or expected not in (None, code):
        wrong.append(f"exit code {code}, expected {expected or 'another than 0'}: {said[-500:]}")
    if case.how in ("error", "bug", "exit") and f"[{case.rank}/{case.ranks} " not in said:
        wrong.append(f"the rank is not named: {said[-500:]}")
    if case.how == "error" and case.phase in WORKERS and "part " not in said:
        wrong.append(f"the part is not named: {said[-500:]}")
    if case.how == "stop" and f"no progress for {SILENCE_S} s" not in said:
        wrong.append(f"nobody says that a rank is silent: {said[-500:]}")
    left = [path.name for path in (world.path / "pids").iterdir() if not _gone(int(path.name))]
    return wrong + [f"process {pid} is left" for pid in left]


def _gone(pid: int) -> bool:
    """Whether a rank ends within some seconds: the launcher may be back before the last of them."""
    for _ in range(100):
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def _again(bench: Bench, world: World, case: Case) -> list[str]:
    """The same command without a fault: what is there is used, and the result is that of an undisturbed run."""
    expected = bench.missing(world) if case.act == "refit" else 0
    begun = {log.name: len(log.read_text().splitlines()) for log in (world.path / "events").glob("refit-*.jsonl")}
    done = world.run(case.ranks, *_arguments(world, case.act))
    if done.code:
        return [f"run again it ends with {done.code}: {done.error[-500:]}"]
    if case.act == "encode":
        same = (world.path / "store/test/versions/000001/manifest.json").read_bytes() == bench.sealed()
        return [] if same else ["the manifest is another than that of an undisturbed run"]
    if case.act == "apply":
        return [] if world.words() == world.full_transfer(1) else ["the replica is not what a full transfer leaves"]
    fetched = sum(event["fetched"] for event in world.events("refit", begun) if event["event"] == "relayed")
    wrong = [] if fetched == expected else [f"{fetched} bytes were fetched again, {expected} were missing"]
    whole, have = bench.parts(bench.apply), bench.parts(world)
    return wrong if have == whole else [*wrong, "the journals are not those of an undisturbed run"]


def main() -> int:
    """Try one case by hand: ``python -m tests.mpi.rank_faults refit fetch 1 kill``."""
    import tempfile

    from bench.launcher import find

    act, phase, rank, how = sys.argv[1:5]
    with tempfile.TemporaryDirectory() as folder:
        tripped, wrong = try_case(Bench(Path(folder), find()), Case(act, phase, int(rank), how))
    print(f"tripped: {tripped}", *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
