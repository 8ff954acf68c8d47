"""The touched-row map: idle rows cost a bit each and nothing else; hostile maps are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec import BlockTable, BucketReader, Scheme, block_table, encode
from dcr_mpi.codec.rows import into_runs, out_of_runs, pack_rows, row_counts, runs_of, touched, unpack_rows
from dcr_mpi.codec.walk import ROWS
from dcr_mpi.errors import CorruptInput
from dcr_mpi.kernels import get_kernels
from dcr_mpi.layout import Span
from dcr_mpi.synth import round_bf16
from dcr_mpi.wire import Bucket, PartHeader, pack_part, unpack_part

JIT, REFERENCE = get_kernels("numba"), get_kernels("numpy")
Case = tuple[BlockTable, int, np.ndarray, np.ndarray]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A table of small blocks, a row length, and changes (counts, positions)."""
    spans = [Span(t, 64 * a, 64 * a + n) for t, a, n in draw(
        st.lists(st.tuples(st.integers(0, 0), st.integers(0, 4), st.integers(1, 500)), min_size=1, max_size=3)
        .map(lambda rows: [(t, a, n) for t, (_, a, n) in enumerate(rows)])
    )]  # fmt: skip
    table = block_table(spans, 64)
    seed = draw(st.integers(0, 1 << 32))
    rng = np.random.default_rng(seed)
    density = draw(st.sampled_from([0.01, 0.05, 0.5]))
    chosen = [np.flatnonzero(rng.random(n) < density) for n in table.size]
    if not any(len(c) for c in chosen):
        chosen[0] = np.array([0])
    counts = np.array([len(c) for c in chosen], np.int64)
    return table, draw(st.integers(16, 150)), counts, np.concatenate(chosen).astype(np.uint32)


@given(cases())
def test_runs_are_the_touched_rows(case: Case) -> None:
    table, row, counts, positions = case
    kept = touched(table, row, counts, positions)
    assert len(kept) == row_counts(table, row).sum()
    runs = runs_of(table, row, kept)
    covered = np.zeros(table.length, bool)
    for offset, size in zip(runs.offset, runs.size, strict=True):
        assert not covered[offset : offset + size].any()
        covered[offset : offset + size] = True
    wanted, at = np.zeros(table.length, bool), 0
    for block in range(len(table)):
        inside = (table.start[block] + np.arange(table.size[block])) // row - table.start[block] // row
        table.view(wanted, block)[...] = kept[at + inside]
        at += int(inside[-1]) + 1
    assert (covered == wanted).all()
    inner, moved = into_runs(table, runs, counts, positions)
    assert (moved < np.repeat(runs.size, inner)).all()
    back, same = out_of_runs(table, runs, inner, moved)
    assert (back == counts).all()
    assert (same == positions).all()
    length, again = unpack_rows(pack_rows(row, kept), table)
    assert length == row
    assert (again == kept).all()


def _embedding(idle: float) -> tuple[BlockTable, np.ndarray, np.ndarray]:
    """A matrix of 3000 rows of 96 words of which most did not move at all."""
    rng = np.random.default_rng(7)
    rows, row = 3000, 96
    weights = (rng.standard_normal((rows, row)) * 0.05).astype(np.float32)
    step = rng.standard_normal((rows, row)).astype(np.float32) * 1e-5 * (rng.random(rows) > idle)[:, None]
    table = block_table([Span(0, 0, rows * row)], 1 << 14)
    base, new = np.zeros((2, table.length), np.uint16)
    for words, values in ((base, weights), (new, weights - step)):
        flat = round_bf16(values.astype(np.float32)).reshape(-1)
        for block in range(len(table)):
            table.view(words, block)[...] = flat[table.start[block] : table.start[block] + table.size[block]]
    return table, base, new


def _reader(packed: bytes) -> tuple[Bucket, BucketReader]:
    header = PartHeader(bytes(16), bytes(16), 1, 0, 0, 1)
    bucket = unpack_part(pack_part(header, [packed]), "part")[1][0]
    return bucket, BucketReader(bucket, anchor=False)


def test_idle_rows_are_left_out() -> None:
    table, base, new = _embedding(0.9)
    changes = JIT.changes(base, new, table.offset, table.size)
    sizes = {}
    for row in (0, 96):
        packed = [
            encode(Scheme("class"), "bf16", table, 1 << 14, base, new, changes, room, row) for room in (JIT, REFERENCE)
        ]
        assert packed[0] == packed[1]
        bucket, reader = _reader(packed[0])
        assert (ROWS in bucket.streams) == (row > 0)
        blocks = np.flatnonzero(reader.changed)
        mine = reader.table.select(blocks)
        before = np.zeros(mine.length, np.uint16)
        for k, block in enumerate(blocks.tolist()):
            mine.view(before, k)[...] = table.view(base, block)
        for room in (JIT, REFERENCE):
            target, found = reader.decode(before, room)
            assert (found.counts == changes.counts[blocks]).all()
            for k, block in enumerate(blocks.tolist()):
                assert (mine.view(target, k) == table.view(new, block)).all()
        sizes[row] = len(packed[0])
    assert sizes[96] < 0.85 * sizes[0]


def test_busy_rows_get_no_map() -> None:
    table, base, new = _embedding(0.0)
    changes = JIT.changes(base, new, table.offset, table.size)
    bucket, _ = _reader(encode(Scheme("class"), "bf16", table, 1 << 14, base, new, changes, JIT, 96))
    assert ROWS not in bucket.streams


@pytest.mark.parametrize(
    "bad", [b"", b"\x0f\xff", b"\x10", b"\x10" + bytes(3), b"\x10\xff\xff\xff\xff", b"\xff" * 12, b"\x80"]
)
def test_hostile_maps(bad: bytes) -> None:
    with pytest.raises(CorruptInput, match="row map"):
        unpack_rows(bad, block_table([Span(0, 0, 300)], 64))
