"""Golden parts: today's reader reads them, and today's writer still writes the very bytes.

Parts with an entropy stage, and those coded by class, are read, and what is written today is read back, but their
bytes are not compared: another zstd, or a better model, may code the same content in other bytes of the same format.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr_mpi.codec import BucketReader
from dcr_mpi.digest import block_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels
from dcr_mpi.wire import PartHeader, Stream, unpack_part
from tests.golden.make import FOLDER, POLICY, TILING, first_cases, old_and_new, part_of, table_of, words_of
from tests.golden.second_reader import read_part

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


@pytest.mark.parametrize("name", CASES)
def test_a_reader_written_from_the_document_reads_them_too(name: str) -> None:
    case = CASES[name]
    before, after, widths = [], [], {}
    for bucket in case["buckets"]:
        kind = bucket["dtype"]
        where = [(tile, k) for tile, start, stop in bucket["spans"] for k in range(start, stop)]
        old = dict(zip(where, words_of(bucket["words"], kind).tolist(), strict=True))
        before.append(old if case["base"] is not None else {})
        after.append(old | {where[k]: int(words_of(word, kind)[0]) for k, word in bucket["changes"]})
        widths[kind] = dtype(kind).word_bytes
    found = read_part((FOLDER / f"{name}.part").read_bytes(), before, widths)
    assert [a | b for a, b in zip(before, found, strict=True)] == after


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
