"""The world at every stage of a version's life, made once; each point of a campaign gets a copy of its own.

The training checkpoints are nobody's to change, so they lie beside the copies, under one path: then whatever the
commands write is the same, byte for byte, in every copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dcr_mpi.errors import NotReady
from tests.campaign.child import Ended, run, warm
from tests.campaign.compare import contents
from tests.world import CODEC

SITE = ("--site", "rollout")
DIRECT = ("--set=relay.transport=direct", "--set=direct.listen=127.0.0.1")
STEPS = 3


@dataclass(frozen=True)
class Place:
    """One copy of the world."""

    path: Path

    @property
    def replica(self) -> Path:
        return self.path / "replica"

    def run(self, argv: Sequence[str], strace: Sequence[str] = ()) -> Ended:
        return run(self.path, [*argv, "--json"], strace)

    def contents(self) -> dict[str, str]:
        """What is there, see :func:`tests.campaign.compare.contents`."""
        return contents(self.path)

    def must(self, argv: Sequence[str]) -> str:
        """Run a command that cannot fail; its text."""
        done = self.run(argv)
        if done.code:
            raise AssertionError(f"dcr {' '.join(argv)}: exit code {done.code}\n{done.text}")
        return done.text


@dataclass(frozen=True)
class Scene:
    """A command in a world at some stage: what the campaign disturbs."""

    name: str
    stage: str
    argv: tuple[str, ...]
    then: tuple[tuple[str, ...], ...] = ()  # what a user would go on with; must work after any disturbance
    # Run again it may find nothing to do: older leases and empty folders are then the next one's to sweep.
    idle: bool = False


class Arena:
    """``root`` should be on a memory file system: every call is made, none takes time."""

    def __init__(self, root: Path) -> None:
        self.root, self._made = root, 0
        self.model = root / "model"
        self._stages: dict[str, Place] = {}
        warm(root, [("synth", str(self.model), "--step", str(s), "--size", "tiny") for s in range(STEPS)])
        with self.copy("empty", "warm") as place:
            cycle = [("init", *SITE), ("encode", self.step(1)), ("refit", *SITE), ("commit",), ("apply", *SITE)]
            warm(place.path, [("init", "--checkpoint", self.step(0)), *cycle, ("verify", *SITE)])

    def step(self, number: int) -> str:
        return str(self.model / f"step-{number:06d}")

    def stage(self, name: str) -> Place:
        """The template of a stage: to be copied, not changed."""
        if name not in self._stages:
            before, make = _STAGES[name]
            path = self.root / "stages" / name
            if before is None:
                path.mkdir(parents=True)
                (path / "dcr.yaml").write_text(self._config())
            else:
                shutil.copytree(self.stage(before).path, path)
            place = Place(path)
            make(self, place)
            self._stages[name] = place
        return self._stages[name]

    @contextmanager
    def copy(self, stage: str, label: str = "w") -> Iterator[Place]:
        """A copy for one use, whichever process asks."""
        self._made += 1
        path = self.root / "copies" / f"{label}-{os.getpid()}-{self._made:06d}"
        shutil.copytree(self.stage(stage).path, path)
        try:
            yield Place(path)
        finally:
            shutil.rmtree(path)

    def _config(self) -> str:
        layouts = self.model / "layouts"
        return (
            "policy: test\nstore: {url: store}\n"
            f"trainer: {{state: state, layout: {layouts}/trainer.json, sites: [rollout]}}\n"
            f"sites: {{rollout: {{replica: replica, layout: {layouts}/site.json}}}}\n"
            f"codec: {CODEC}\nrelay: {{timeout_s: 20, chunk_mib: 0.001}}\ncommit: {{wait_s: 0}}\n"
            "events: {progress_s: 0}\n"
        )

    def scenes(self) -> list[Scene]:
        """Every act that changes something, from each stage that it may start at."""
        refit, commit, apply = ("refit", *SITE), ("commit",), ("apply", *SITE)
        encode = ("encode", self.step(1))
        rest = (refit, commit, apply)
        return [
            Scene("init", "empty", ("init", "--checkpoint", self.step(0)), (("init", *SITE), encode, *rest)),
            Scene("create", "policy", ("init", *SITE), (encode, *rest)),
            Scene("create-from", "policy", ("init", *SITE, "--from", self.step(0)), (encode, *rest)),
            Scene("encode", "begun", encode, rest),
            Scene("encode-opened", "opened", encode, rest),
            Scene("encode-half", "half-encoded", encode, rest),
            Scene("refit", "sealed", refit, (commit, apply)),
            Scene("refit-followed", "followed", refit, (commit, apply)),
            Scene("refit-again", "half-prepared", refit, (commit, apply)),
            Scene("commit", "prepared", commit, (apply,)),
            Scene("abort", "prepared", ("commit", "--abort", "a test"), (apply,)),
            Scene("apply", "committed", apply),
            Scene("apply-again", "half-applied", apply),
            Scene("discard", "aborted", apply),
            Scene("catch-up", "behind", ("refit", *SITE, "--catch-up")),
            Scene("run", "begun", ("run", self.step(1))),
            Scene("encode-next", "applied", ("encode", self.step(2)), rest),
            Scene("run-next", "aborted", ("run", self.step(2))),
            Scene("encode-direct", "begun", (*encode, *DIRECT, "--set=direct.serve_s=0.01"), rest),
            Scene("publish", "prepared", ("publish", self.step(1), "--until", "1"), (apply,)),
            Scene("follow", "committed", ("follow", *SITE, "--until", "1"), idle=True),
            Scene("follow-behind", "behind", ("follow", *SITE, "--until", "2"), idle=True),
        ]


def _killed(argv: tuple[str, ...], call: str, at: int) -> Callable[[Arena, Place], None]:
    def make(_: Arena, place: Place) -> None:
        options = ("-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={at}")
        done = place.run(argv, options)
        assert done.code == -9, f"{argv}: ended with {done.code} before {call} number {at}\n{done.text}"

    return make


def _dcr(*argv: str) -> Callable[[Arena, Place], None]:
    def make(_: Arena, place: Place) -> None:
        place.must(argv)

    return make


def _opened(_: Arena, place: Place) -> None:
    """What a publisher leaves that dies just after its announcement."""
    version = place.path / "store/test/versions/000001"
    (version / "manifest.json").unlink()
    shutil.rmtree(version / "parts")
    shutil.rmtree(version / "stream")
    (place.path / "state/pending.json").unlink()


def _half_encoded(_: Arena, place: Place) -> None:
    """What a publisher leaves that dies in the middle: some parts, some of those announced."""
    version = place.path / "store/test/versions/000001"
    (version / "manifest.json").unlink()
    (place.path / "state/pending.json").unlink()
    parts, said = sorted((version / "parts").iterdir()), sorted((version / "stream").iterdir())
    for path in (*parts[len(parts) // 2 + 1 :], *said[len(said) // 2 :]):
        path.unlink()


def _followed(arena: Arena, place: Place) -> None:
    """The site took what was announced, and gave up; then the publisher came back."""
    done = place.run(("refit", *SITE, "--wait", "0.05"))
    assert done.code == NotReady.code, done.text
    assert list(place.replica.glob(".dcr/v000001/*/*.journal"))
    place.must(("encode", arena.step(1)))


def _behind(arena: Arena, place: Place) -> None:
    """Two versions committed without the site."""
    for step in (1, 2):
        place.must(("encode", arena.step(step)))
        place.must(("commit", "--without", "rollout"))


_STAGES: dict[str, tuple[str | None, Callable[[Arena, Place], object]]] = {
    "empty": (None, lambda *_: None),
    "policy": ("empty", lambda arena, place: place.must(("init", "--checkpoint", arena.step(0)))),
    "begun": ("policy", _dcr("init", *SITE)),
    "sealed": ("begun", lambda arena, place: place.must(("encode", arena.step(1)))),
    "opened": ("sealed", _opened),
    "half-encoded": ("sealed", _half_encoded),
    "followed": ("half-encoded", _followed),
    "half-prepared": ("sealed", _killed(("refit", *SITE), "pwrite64", 9)),
    "prepared": ("sealed", _dcr("refit", *SITE)),
    "aborted": ("prepared", _dcr("commit", "--abort", "a test")),
    "committed": ("prepared", _dcr("commit")),
    "half-applied": ("committed", _killed(("apply", *SITE), "pwrite64", 9)),
    "applied": ("committed", _dcr("apply", *SITE)),
    "behind": ("begun", _behind),
}
