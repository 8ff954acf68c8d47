"""Store faults in whole version cycles: every request of encode, refit, commit and apply meets every kind of fault.

A world goes on from version to version, between two steps of a tiny model. In each cycle one request of one act meets
one fault on its way to the real S3 server; then the act is run again without. What passes must not show; what is final
must have its exit code; and at the end the replica must have the bits of a full transfer, whatever happened.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.servers import S3Server
from tests.store.behind import Behind
from tests.store.faults import FINAL, LONG, PASSING, altered, flipped, halved, hidden
from tests.store.proxy import READS, Fault, Proxy, Rule

SITE = ("--site", "rollout")
LIMIT = 20  # failures are enough to look at
BOUND_S = 30.0  # the deadline of one operation, and what is under way then; the machine may be busy


@dataclass(frozen=True)
class Case:
    """A fault, the requests it is meant for, and the exit codes that it may end in."""

    fault: Fault
    codes: frozenset[int]
    operation: str = ""
    key: str = ""


FAULTS = {
    **{name: Case(fault, frozenset({0})) for name, fault in PASSING.items()},
    **{name: Case(fault, frozenset({code})) for name, (fault, code) in FINAL.items()},
    # Not there yet: nothing to do, or refused (a version or decision unseen makes the one before it the newest, whose
    # base nobody has; the put-once objects hold). A cut document is corrupt; a part that is cut
    # or another is fetched again.
    "hidden": Case(hidden, frozenset({0, 2, 10, 12, 13}), READS),
    "halved": Case(altered(halved, trusted=True), frozenset({0, 11}), READS),
    "part changed": Case(altered(flipped, trusted=True), frozenset({0}), "Get", "/parts/"),
}
QUICK = ["lost reply", "upload cut", "body cut in the middle", "expired token", "hidden", "halved", "part changed"]


class Sweep:
    """One world, its version, and what was found."""

    def __init__(self, path: Path, server: S3Server, proxy: Proxy) -> None:
        self.world, self.proxy, self.version = Behind(path, server, proxy), proxy, 0
        proxy.script()
        self.world.start()
        self.steps = [self.world.synth(step) for step in (2, 1)]
        self.expected = [self.world.full_transfer(step) for step in (2, 1)]
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def acts(self) -> dict[str, tuple[str, ...]]:
        """The four commands of the next version."""
        new = self.steps[(self.version + 1) % 2]
        return {
            "encode": ("encode", str(new)),
            "refit": ("refit", *SITE),
            "commit": ("commit",),
            "apply": ("apply", *SITE),
        }

    def cycle(self, act: str, name: str, nth: int) -> bool:
        """One version, the ``nth`` request of ``act`` meeting the fault ``name``; False where it has not so many."""
        meant, case = FAULTS[name], f"{act}, request {nth}, {name}"
        rule = Rule(meant.fault, meant.operation, meant.key, skip=nth)
        for each, arguments in self.acts().items():
            self.proxy.script(*[rule] if each == act else [])
            began = time.monotonic()
            done = self.world.here(*arguments)
            seconds = time.monotonic() - began
            unseen = name == "hidden"
            if each == act and rule.met:
                self.counts[name] += 1
                self.counts[f"exit code {done.code}"] += 1
                # A refused HEAD has no body. What it was is asked again, and has passed by then; a 404 is an absence.
                bare = any(seen.faulty and seen.operation == "HeadObject" for seen in self.proxy.seen)
                unseen |= bare
                allowed = meant.codes | ({0} if bare else set())
                self._check(done.code in allowed, f"{case}: exit code {done.code}: {done.error}")
                self._check(seconds < BOUND_S, f"{case}: {seconds:.1f} s")
            else:
                self._check(done.code == 0, f"{case}: {each} undisturbed, exit code {done.code}: {done.error}")
            self.proxy.script()
            # A version that could not be seen is none: then a command did what there was to do before it.
            other = done.code == 0 and done.json["version"] != self.version + 1
            self._check(unseen or not other, f"{case}: {each} was about another version: {done.out}")
            if done.code or other:
                again = self.world.here(*arguments)
                self._check(again.code == 0, f"{case}: {each} again, exit code {again.code}: {again.error}")
        self.version += 1
        self.counts["cycles"] += 1
        equal = self.world.words() == self.expected[self.version % 2]
        self._check(equal, f"{case}: the replica has other bits than after a full transfer")
        return rule.met > 0

    def _check(self, good: bool, message: str) -> None:
        if not good:
            self.failures.append(message)


def run(quick: bool, names: Sequence[str] = ()) -> tuple[dict[str, int], list[str]]:
    """Sweep every fault (or those of ``names``) over every request; ``quick``: some faults, one request of each act.

    Returns what was tried by name, with its number, and what went wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder) / "s3").start()
        proxy = Proxy(server.endpoint)
        try:
            with patch.dict(os.environ, server.env()):
                (Path(folder) / "world").mkdir()
                sweep = Sweep(Path(folder) / "world", server, proxy)
                for name in names or (QUICK if quick else FAULTS):
                    for act in sweep.acts():
                        _every(sweep, act, name, quick)
                    so_far = f"{name}: {sweep.counts['cycles']} cycles, {len(sweep.failures)} failures so far"
                    print(so_far, file=sys.stderr, flush=True)  # it takes most of an hour
                return dict(sweep.counts), sweep.failures
        finally:
            proxy.close()
            server.stop()


def _every(sweep: Sweep, act: str, name: str, quick: bool) -> None:
    if quick:
        sweep.cycle(act, name, zlib.crc32(f"{act} {name}".encode()) % 6)
        return
    nth = 0
    while len(sweep.failures) < LIMIT and sweep.cycle(act, name, nth):
        nth += 3 if name in LONG else 1


if __name__ == "__main__":
    arguments = sys.argv[1:]
    tried, wrong = run("--quick" in arguments, [a for a in arguments if a != "--quick"])
    for what, count in sorted(tried.items()):
        print(f"{count:6}  {what}")
    print("\n".join(wrong) or "nothing went wrong")
    sys.exit(bool(wrong))
