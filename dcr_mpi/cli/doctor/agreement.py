"""What must be the same on every rank of a job: programs, configuration, time, and the directories that they see."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ... import durable
from ...comm import Comm
from ...config import Config
from ...digest import sha256
from ...errors import DcrError, ResourceError, UsageError
from .finding import Finding, fail, ok, warn
from .node import versions

_SKEW_S = 2.0


@dataclass(frozen=True)
class Facts:
    """One rank: versions by package, digest of its configuration, its clock just after all ranks met."""

    versions: dict[str, str]
    config: str
    now: float

    @classmethod
    def here(cls, config: Config | None) -> Facts:
        text = repr(asdict(config)) if config is not None else ""
        return cls(versions(), sha256(text.encode()), time.time())


def agreement(facts: Sequence[Facts], hosts: Sequence[str], launched: bool) -> Iterator[Finding]:
    """Whether all ranks are of one mind."""
    if len(facts) == 1:
        if launched:
            yield ok("ranks", "1, as the launcher says")
        return
    wrong = list(_differing(facts, hosts))
    yield from wrong
    spread = max(f.now for f in facts) - min(f.now for f in facts)
    if spread >= _SKEW_S:
        yield warn("ranks", f"clocks that are {spread:.0f} s apart", "one time", "synchronise the hosts (NTP)")
    if not wrong:
        yield ok("ranks", f"{len(facts)}, as the launcher says; hosts: {len(set(hosts))}; all of the same versions")


def _differing(facts: Sequence[Facts], hosts: Sequence[str]) -> Iterator[Finding]:
    for name in facts[0].versions:
        if len({f.versions[name] for f in facts}) > 1:
            yield _different(name, [f.versions[name] or "none" for f in facts], hosts)
    if len({f.config for f in facts}) > 1:
        yield _different("configuration", [f.config[:12] for f in facts], hosts)


def _different(name: str, values: Sequence[str], hosts: Sequence[str]) -> Finding:
    places: dict[str, list[str]] = defaultdict(list)
    for rank, value in enumerate(values):
        places[value].append(f"rank {rank} on {hosts[rank]}")
    told = "; ".join(f"{value} at {', '.join(who[:3])}{', ...' * (len(who) > 3)}" for value, who in places.items())
    return fail("ranks", UsageError(f"{name} of the ranks", found=told, expected="one for all",
                                    remedy="start all ranks from one environment on a shared file system"))  # fmt: skip


def seen_by_all(ranks: Comm, directories: Sequence[tuple[str, Path]]) -> list[Finding]:
    """Whether every rank sees what rank 0 writes into the directories that it has."""
    lead = ranks.rank == 0
    token = f"{durable.TEMP_PREFIX}doctor-{secrets.token_hex(8)}".encode() if lead else None
    name = ranks.broadcast(token, "name of a file to look for").decode()
    files = [path / name for _, path in directories]
    written = bytearray(len(files))
    for k, file in enumerate(files if lead else ()):
        if file.parent.is_dir():
            with suppress(DcrError):  # told by the look at that directory
                durable.replace(file, b"")
                written[k] = 1
    shown = ranks.broadcast(bytes(written) if lead else None, "files that were written")
    rows = zip(directories, files, shown, strict=True)
    missing = [key for (key, _), file, there in rows if there and not file.exists()]
    ranks.barrier("a look for files")
    for file in files if lead else ():
        with suppress(OSError):
            file.unlink()
    return [fail(key, _unseen(key)) for key in missing]


def _unseen(key: str) -> DcrError:
    return ResourceError(
        key,
        found="a directory in which this rank does not see what rank 0 wrote",
        expected="one that all ranks share",
        remedy="put it on a file system that all hosts have",
    )
