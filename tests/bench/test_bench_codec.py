"""The codec's benchmark: it runs, its figures mean what they say, and the reference formats lose nothing. No timing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bench.codec.__main__ import main
from bench.codec.floors import floors
from bench.codec.formats import FORMATS, Format
from bench.codec.run import OURS
from dcr_mpi.calibrate.data import ROUND, DataSet, Tensor, adam, uniform
from dcr_mpi.calibrate.world import World
from dcr_mpi.kernels import get_kernels

KEYS = {
    "data", "changed_fraction", "scheme", "bits_per_changed", "floor_bits", "encode_gb_s", "prepare_gb_s",
    "apply_gb_s", "memcpy_gb_s", "payload_bytes", "dense_bytes",
}  # fmt: skip


def test_the_quick_run_writes_what_machines_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--mib", "1", "--out", str(tmp_path), "--real", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "codec.json").read_text())
    printed = capsys.readouterr().out
    by: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        assert set(row) >= KEYS
        assert row["data"] in printed
        by.setdefault(row["data"], {})[row["scheme"]] = row
    assert len(by) >= 5
    for schemes in by.values():
        assert set(schemes) == {*OURS, *(f.name for f in FORMATS)}
        for row in schemes.values():
            changed = round(row["changed_fraction"] * row["dense_bytes"] / (4 if "f32" in str(row["data"]) else 2))
            assert row["bits_per_changed"] == pytest.approx(8 * row["payload_bytes"] / changed)
            assert min(row["encode_gb_s"], row["apply_gb_s"], row["memcpy_gb_s"]) > 0
        assert schemes["class, ulp"]["bits_per_changed"] > schemes["class, ulp"]["floor_bits"]
        best = min(schemes["class, ulp"]["payload_bytes"], schemes["plain, ulp"]["payload_bytes"])
        assert schemes["auto, ulp"]["payload_bytes"] <= 1.02 * best


def _pair(words: np.ndarray, at: np.ndarray, seed: int) -> Tensor:
    new = words.copy()
    mask = np.random.default_rng(seed).integers(1, 1 << 8 * words.itemsize, len(at), words.dtype)
    new[at] ^= mask
    return Tensor("w", words.shape, words, new)


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("word", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("case", ["few", "none", "all", "far apart", "first and last"])
def test_a_reference_format_gives_back_every_bit(form: Format, word: type, case: str) -> None:
    draw = np.random.default_rng(5)
    words = draw.integers(0, 1 << 8 * np.dtype(word).itemsize, 200_000, word)
    at = {
        "few": np.flatnonzero(draw.random(len(words)) < 0.03),
        "none": np.empty(0, np.int64),
        "all": np.arange(len(words)),
        "far apart": np.array([70_000, 140_000]),
        "first and last": np.array([0, len(words) - 1]),
    }[case]
    tensors = [_pair(words, at, 1), replace(_pair(words[:1000].copy(), np.array([17, 18]), 2), name="other")]
    payload = form.encode(tensors)
    targets = [t.base.copy() for t in tensors]
    form.decode(payload, targets)
    for tensor, target in zip(tensors, targets, strict=True):
        assert (target == tensor.new).all()


def test_gaps_are_two_bytes_until_one_does_not_fit() -> None:
    words = np.zeros(200_000, np.uint16)
    sizes = [len(FORMATS[0].encode([_pair(words, np.array(at), 1)])) for at in ([70_000, 140_000], [60_000, 120_000])]
    assert sizes[0] == sizes[1] + 4


def test_a_damaged_reference_payload_is_noticed() -> None:
    tensor = _pair(np.arange(5000, dtype=np.uint16), np.arange(0, 5000, 7), 1)
    payload = bytearray(FORMATS[0].encode([tensor]))
    payload[-1] ^= 1
    with pytest.raises(ValueError, match="not what was encoded"):
        FORMATS[0].decode(bytes(payload), [tensor.base.copy()])


def test_floors_are_the_entropies_of_the_models() -> None:
    """Two exponents of 4096 words each, of which 1/4 and 1/16 change, all by the same step within an exponent."""
    one, two = np.full(4096, 0x3F80, np.uint16), np.full(4096, 0x4000, np.uint16)
    base = np.concatenate((one, two))
    new = base.copy()
    new[:1024] += 1
    new[4096 : 4096 + 256] += 2
    found = floors(DataSet("x", "x", "bf16", (Tensor("w", (2, 4096), base, new),)), get_kernels("numpy"))

    def entropy(p: float) -> float:
        return -p * math.log2(p) - (1 - p) * math.log2(1 - p)

    assert found.positions == pytest.approx(8192 * entropy(1280 / 8192) / 1280)
    assert found.positions_by_exponent == pytest.approx(4096 * (entropy(1 / 4) + entropy(1 / 16)) / 1280)
    assert found.values == pytest.approx(entropy(256 / 1280))
    assert found.values_by_exponent == 0


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f8e4m3", "f8e5m2"])
def test_data_sets_are_the_same_every_time_and_change_as_much_as_asked(kind: str) -> None:
    one, two = adam(kind, 0.05, 1 << 20), adam(kind, 0.05, 1 << 20)
    assert all(
        (a.base == b.base).all() and (a.new == b.new).all() for a, b in zip(one.tensors, two.tensors, strict=True)
    )
    assert one.changed / one.words == pytest.approx(0.05, rel=0.1)
    assert one.dense_bytes == 1 << 20


def test_the_uniform_law_moves_by_one_unit_at_any_exponent() -> None:
    data = uniform(0.03, 1 << 21)
    moved = np.concatenate([(t.new - t.base)[t.new != t.base] for t in data.tensors])
    assert set(np.unique(moved).tolist()) == {1, 0xFFFF}
    assert data.changed / data.words == pytest.approx(0.03, rel=0.05)


@pytest.mark.parametrize(("kind", "theirs"), [("f8e4m3", ml_dtypes.float8_e4m3fn), ("f8e5m2", ml_dtypes.float8_e5m2)])
def test_fp8_rounds_to_the_nearest(kind: str, theirs: type) -> None:
    values = np.random.default_rng(3).standard_normal(100_000, np.float32) * np.float32(0.1)
    assert (ROUND[kind](values) == (values * np.float32(512)).astype(theirs).view(np.uint8)).all()


@pytest.mark.parametrize("shards", [None, (4, 2)], ids=["whole", "split"])
@pytest.mark.parametrize("name", OURS)
def test_every_scheme_goes_the_whole_way(name: str, shards: tuple[int, int] | None, tmp_path: Path) -> None:
    world = World(adam("bf16", 0.05, 1 << 20), get_kernels(), tmp_path, 1 << 18, shards=shards)
    assert len(world.parts) == 4
    assert world.tiles == (8 if shards is None else 8 * max(shards))
    world.check(world.encode(OURS[name], check=True))


@pytest.mark.parametrize("shards", [None, (4, 2)], ids=["whole", "split"])
def test_a_target_that_is_not_reached_ends_the_benchmark(shards: tuple[int, int] | None, tmp_path: Path) -> None:
    data = adam("bf16", 0.05, 1 << 20)
    parts = World(data, get_kernels(), tmp_path, shards=shards).encode(OURS["auto, ulp"])
    first = data.tensors[0]
    other = replace(data, tensors=(replace(first, new=first.base), *data.tensors[1:]))
    with pytest.raises(SystemExit, match="did not become the new words"):
        World(other, get_kernels(), tmp_path, shards=shards).check(parts)
