"""Hostile bytes: mutated parts and documents are read, or refused by a named error."""

from __future__ import annotations

from tests.campaign.disturb import Bench, on_all_cores
from tests.campaign.report import Report
from tests.documents import campaign as mutate_documents
from tests.fuzz import campaign

_SLOW_S, _ROOM = 20.0, 512 << 20
_LOT = 500  # mutants in one go


def run(bench: Bench, budget: int, report: Report) -> None:
    """About ``budget`` mutants, nine parts to one document."""
    lots = max(1, budget // _LOT)

    def work(lot: int) -> tuple[str, int, str]:
        if lot % 10 == 9:
            return "documents", _LOT, documents(lot, _LOT)
        return "parts", _LOT, parts(lot, _LOT)

    for kind, number, wrong in on_all_cores(work, [9, *range(9), *range(10, lots)][:lots], bench.workers):
        report.count("hostile_parts", "hostile", kind, number)
        if wrong:
            report.fail(f"hostile {kind}", wrong)


def parts(seed: int, count: int) -> str:
    """Mutated parts against the reader; what is wrong."""
    try:
        told = campaign(1000 + seed, count)
    except Exception as error:  # whatever is no refusal is what this looks for
        return f"seed {1000 + seed}: {type(error).__name__}: {error}"
    if told.slowest > _SLOW_S or told.grown > _ROOM:
        return f"seed {1000 + seed}: the slowest took {told.slowest:.1f} s, memory grew by {told.grown >> 20} MiB"
    return ""


def documents(seed: int, count: int) -> str:
    """Mutated JSON documents through the acts that read them; what is wrong."""
    told = mutate_documents(2000 + seed, count)
    if told.failures:
        return f"seed {2000 + seed}: {'; '.join(told.failures[:3])}"
    if told.slowest > _SLOW_S or told.grown > _ROOM:
        return f"seed {2000 + seed}: the slowest took {told.slowest:.1f} s, memory grew by {told.grown >> 20} MiB"
    return ""
