"""What a check found, and how findings of several ranks become one list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import DcrError, from_os_error

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line: ``check`` names the thing; ``code`` is the exit code of a failure's class, else 0.

    ``where`` says which ranks, where it is not all of them.
    """

    check: str
    level: Level
    found: str
    expected: str = ""
    remedy: str = ""
    code: int = 0
    where: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warn(check: str, found: str, expected: str, remedy: str) -> Finding:
    return Finding(check, "warn", found, expected, remedy)


def fail(check: str, error: DcrError) -> Finding:
    """The line of an error, whose class gives the code."""
    found = error.what + (f": {error.found}" if error.found is not None else "")
    return Finding(
        check, "fail", found, str(error.expected or "no error"), error.remedy or "see the README", error.code
    )


def guarded(check: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """A check's findings; an error of ours or the system's is one of them."""
    try:
        yield from look()
    except DcrError as error:
        yield fail(check, error)
    except OSError as error:
        yield fail(check, from_os_error(error, str(error.filename or check)))


def merged(by_rank: Sequence[Sequence[Finding]], hosts: Sequence[str]) -> list[Finding]:
    """One list of all ranks' findings, in the order of the checks.

    Good lines of one check are one line, by the words of the first rank that has it; what is not good is told in full,
    once for all ranks that say the same.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    first: dict[tuple[Any, ...], Finding] = {}
    for rank, findings in enumerate(by_rank):
        good: Counter[str] = Counter()  # a check may have several good lines, the same number on every rank
        for f in findings:
            good[f.check] += 1
            at = (f.check, good[f.check])
            key = at if f.level == "ok" else (f.check, f.level, f.found, f.expected, f.remedy)
            first.setdefault(key, f)
            groups.setdefault(key, []).append(rank)
    bad = {f.check for fs in by_rank for f in fs if f.level != "ok"}
    order = {check: k for k, check in enumerate(dict.fromkeys(f.check for fs in by_rank for f in fs))}
    out = []
    for key in sorted(groups, key=lambda key: order[key[0]]):
        ranks = groups[key]
        told = len(ranks) == len(by_rank) or (len(key) == 2 and key[0] not in bad)
        out.append(first[key] if told else _at(first[key], ranks, hosts))
    return out


def _at(finding: Finding, ranks: Sequence[int], hosts: Sequence[str]) -> Finding:
    places = ", ".join(sorted({hosts[r] for r in ranks}))
    numbers = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    where = f"rank{'s' if len(ranks) > 1 else ''} {numbers} on {places}"
    return Finding(
        finding.check, finding.level, finding.found, finding.expected, finding.remedy, finding.code, where=where
    )
