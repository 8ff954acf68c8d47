"""A few thousand mutated parts in every run: read, or refused, and nothing else. More of it in test_fuzz_slow."""

from __future__ import annotations

from tests.fuzz import campaign


def test_mutated_parts_are_read_or_refused() -> None:
    report = campaign(seed=7, count=4000)
    assert report.verdicts.total() == 4000
    assert min(report.verdicts[v] for v in ("refused", "decoded to the target", "decoded to other words")) > 100
    assert report.slowest < 20  # seconds: no hang, on a machine however busy
    assert report.grown < 128 << 20
