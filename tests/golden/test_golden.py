"""Golden parts: today's reader reads them, and today's writer still writes the very bytes.

Parts with an entropy stage, and those coded by class, are read, and what is written today is read back, but their
bytes are not compared: another zstd, or a better model, may code the same content in other bytes of the same format.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.codec import BlockTable, BucketReader
from dcr_mpi.codec.classes import pack_model, unpack_model
from dcr_mpi.codec.rows import into_runs, runs_of, unpack_rows
from dcr_mpi.codec.values import DENSE_PLANES
from dcr_mpi.codec.walk import CODE, MODEL, ROWS, Walk
from dcr_mpi.digest import block_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Changes, Kernels
from dcr_mpi.kernels.hazard import axis
from dcr_mpi.wire import PartHeader, Stream, unpack_part
from tests.golden.make import FOLDER, POLICY, TILING, first_cases, old_and_new, part_of, table_of, words_of
from tests.golden.second_reader import Step, Words, read_part

CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
ROOMS = pytest.mark.parametrize("kernels", [get_kernels("numpy"), get_kernels("numba")], ids=["numpy", "numba"])


def check(data: bytes, case: dict[str, Any], kernels: Kernels) -> None:
    """A part decodes to what its description says."""
    header, buckets = unpack_part(data, "golden part")
    wanted = PartHeader(POLICY, TILING, case["version"], case["base"], case["index"], len(case["buckets"]))
    assert header == wanted
    for packed, bucket in zip(buckets, case["buckets"], strict=True):
        anchor = case["base"] is None
        reader, table = BucketReader(packed, anchor), table_of(bucket)
        assert (reader.dtype.name, reader.values, reader.block) == (bucket["dtype"], bucket["values"], bucket["block"])
        assert reader.table.spans == table.spans
        old, new = old_and_new(bucket)
        base = np.zeros_like(new) if anchor else old
        blocks = np.flatnonzero(reader.changed)
        mine = table.select(blocks)
        words = np.zeros(mine.length, new.dtype)
        for k, block in enumerate(blocks.tolist()):
            mine.view(words, k)[...] = table.view(base, block)
        target, _ = reader.decode(words, kernels)
        for block in np.flatnonzero(~reader.changed).tolist():
            assert table.view(old, block).tobytes() == table.view(new, block).tobytes()
        for k, block in enumerate(blocks.tolist()):
            assert mine.view(target, k).tobytes() == table.view(new, block).tobytes()
            assert reader.target[block] == block_digest(table.view(new, block))
            assert anchor or reader.base[block] == block_digest(table.view(old, block))


@ROOMS
@pytest.mark.parametrize("name", CASES)
def test_golden_parts(name: str, kernels: Kernels) -> None:
    case, stored = CASES[name], (FOLDER / f"{name}.part").read_bytes()
    check(stored, case, kernels)
    written = part_of(case, kernels)
    by_class = any(bucket["positions"] == "class" for bucket in case["buckets"])
    if case["zstd"] is None and not by_class:
        assert written == stored
    else:
        check(written, case, kernels)
    if case["zstd"] is not None:
        streams = [s for b in unpack_part(stored, name)[1] for s in b.streams.values() if isinstance(s, Stream)]
        assert any(s.packing == 1 for s in streams)


def second_reading(name: str, steps: list[Step] | None = None) -> tuple[list[Words], list[Words]]:
    """What the second reader makes of a golden part, and what its description says."""
    case = CASES[name]
    before, after, widths = [], [], {}
    for bucket in case["buckets"]:
        kind = bucket["dtype"]
        where = [(tile, k) for tile, start, stop in bucket["spans"] for k in range(start, stop)]
        old = dict(zip(where, words_of(bucket["words"], kind).tolist(), strict=True))
        before.append(old if case["base"] is not None else {})
        after.append(old | {where[k]: int(words_of(word, kind)[0]) for k, word in bucket["changes"]})
        widths[kind] = dtype(kind).word_bytes
    found = read_part((FOLDER / f"{name}.part").read_bytes(), before, widths, steps)
    return [a | b for a, b in zip(before, found, strict=True)], after


@pytest.mark.parametrize("name", CASES)
def test_a_reader_written_from_the_document_reads_them_too(name: str) -> None:
    found, wanted = second_reading(name)
    assert found == wanted


BY_CLASS = [name for name, case in CASES.items() if any(b["positions"] == "class" for b in case["buckets"])]


@ROOMS
@pytest.mark.parametrize("name", BY_CLASS)
def test_code_is_a_function_of_the_model(name: str, kernels: Kernels) -> None:
    """Models may be fitted better one day; the intervals and the code that a model means never change."""
    (bucket,) = unpack_part((FOLDER / f"{name}.part").read_bytes(), name)[1]
    reader = BucketReader(bucket, anchor=False)
    assert reader.by_class
    old, new = old_and_new(CASES[name]["buckets"][0])
    table, sparse = table_of(CASES[name]["buckets"][0]), np.flatnonzero(reader.sparse)
    found = kernels.changes(old, new, table.offset[sparse], table.size[sparse])
    here = BlockTable(
        table.spans, table.span[sparse], table.start[sparse], table.size[sparse], table.offset[sparse], table.length
    )
    raw = {n: s.unpack("s", 1 << 20) for n, s in bucket.streams.items() if isinstance(s, Stream)}
    walk = Walk(here, found)
    if ROWS in raw:
        runs = runs_of(here, *unpack_rows(raw[ROWS], here))
        counts, positions = into_runs(here, runs, found.counts, found.positions)
        placed = BlockTable(
            here.spans, here.span[runs.block], here.start[runs.block], runs.size, runs.offset, here.length
        )
        walk = Walk(placed, Changes(counts, positions, found.old, found.new), raw[ROWS])
    model, bound, total = unpack_model(raw[MODEL], reader.dtype, walk.words)
    assert total == len(found.positions)
    ulp = reader.values == "ulp"
    coded = kernels.difference("ulp", found.old, found.new, reader.dtype) if ulp else np.zeros_like(found.old)
    hazards = kernels.hazards(model, old, walk.table.offset, walk.table.size, walk.changes)
    code = kernels.hazard_encode(model, bound, hazards, found.old, coded)
    assert code.astype("<u4").tobytes() == raw[CODE]
    assert pack_model(model, total) == raw[MODEL]


def test_the_cases_by_class_are_what_their_names_say() -> None:
    streams = {}
    for name in BY_CLASS:
        (bucket,) = unpack_part((FOLDER / f"{name}.part").read_bytes(), name)[1]
        streams[name] = set(bucket.streams)
    assert [name for name in BY_CLASS if ROWS in streams[name]] == ["class-in-touched-rows"]
    assert all(DENSE_PLANES in streams[f"mixed-dense-and-class-{values}"] for values in ("ulp", "xor"))
    steps: list[Step] = []
    second_reading("class-gaps-past-the-axis", steps)
    assert sum(bits == 30 and start + size == 1 << 30 for _, bits, _, start, size in steps) > 3


def test_the_example_of_the_class_coder() -> None:
    """docs/format.md prints its model, its code and every step of its decoder."""
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    part = (FOLDER / "example-class.part").read_bytes()
    (bucket,) = unpack_part(part, "example-class")[1]
    raw = {n: s.unpack("s", 1 << 20) for n, s in bucket.streams.items() if isinstance(s, Stream)}
    (shown,) = [line for line in text.splitlines() if line.startswith("model  ")]
    assert bytes.fromhex(shown.removeprefix("model")) == raw[MODEL] == part[0xAA : 0xAA + len(raw[MODEL])]
    (shown,) = [line for line in text.splitlines() if line.startswith("code   ")]
    assert shown.split()[1:] == [f"{word:08x}" for word in np.frombuffer(raw[CODE], "<u4")]
    assert raw[CODE] == part[0xC7 : 0xC7 + len(raw[CODE])]
    steps: list[Step] = []
    second_reading("example-class", steps)
    rows = re.findall(r"^\| [0-9a-f]{16} \|.*$", text, re.MULTILINE)
    for row, (state, bits, slot, start, size) in zip(rows, steps, strict=True):
        assert row.startswith(f"| {state:016x} | {bits} | {slot} | {start}, {size} |")
    for x in (1, 86, 256, 5120):
        below = (1 << 30) - (int(axis(8).halving[x % 256]) >> (x >> 8))
        assert f"C({x}) = {below}" in text.replace("\n", " ")


def test_the_example_of_the_format_document() -> None:
    """docs/format.md prints it byte by byte."""
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    data = (FOLDER / "example.part").read_bytes()
    for at in range(0, len(data), 16):
        assert f"{at:04x}  {data[at : at + 16].hex(' ')}" in text


def test_every_file_is_described_and_the_folder_is_small() -> None:
    files = {p.stem: p.stat().st_size for p in FOLDER.glob("*.part")}
    assert set(files) == set(CASES)
    assert sum(files.values()) < 64 << 10


def test_descriptions_are_those_of_the_generator() -> None:
    """So that --write adds to the folder what its source says; a changed generator would quietly test less."""
    assert dict(first_cases()) == {name: CASES[name] for name, _ in first_cases()}


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in FOLDER.iterdir()}
    script = Path(FOLDER).parent / "make.py"
    for arguments in ([], ["--write"]):
        run = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    assert {p: p.read_bytes() for p in FOLDER.iterdir()} == before
    assert "nothing is missing" in run.stdout
