"""The class coder in a bucket: its model on the wire, what it costs, when it is chosen, and what of it is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec import BlockTable, BucketReader, Scheme, block_table, encode
from dcr_mpi.codec.classes import fit, most_code, pack_model, unpack_model
from dcr_mpi.digest import block_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import CorruptInput
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import ValueScheme
from dcr_mpi.layout import Span
from dcr_mpi.synth import round_bf16
from dcr_mpi.wire import Bucket, PartHeader, pack_part, unpack_part
from tests.strategies import BucketCase, bucket_cases, class_code, random_words, seeds

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")
SCHEMES: tuple[ValueScheme, ...] = ("ulp", "xor", "overwrite")


def on_wire(bucket: bytes) -> Bucket:
    return unpack_part(pack_part(PartHeader(bytes(16), bytes(16), 1, 0, 0, 1), [bucket]), "part")[1][0]


def coded(scheme: Scheme, name: str, table: BlockTable, block: int, base: np.ndarray, new: np.ndarray) -> bytes:
    changes = JIT.changes(base, new, table.offset, table.size)
    return encode(scheme, name, table, block, base, new, changes, JIT)


def picked(table: BlockTable, words: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """The changed blocks' words, packed as a decoder takes them."""
    blocks = np.flatnonzero(changed)
    mine = table.select(blocks)
    out = np.zeros(mine.length, words.dtype)
    for k, block in enumerate(blocks.tolist()):
        mine.view(out, k)[...] = table.view(words, block)
    return out


def check(scheme: Scheme, name: str, base: np.ndarray, new: np.ndarray, block: int = 1 << 14) -> BucketReader:
    """One span there and back, in both rooms."""
    table = block_table([Span(0, 0, len(base))], block)
    changes = JIT.changes(base, new, table.offset, table.size)
    data = encode(scheme, name, table, block, base, new, changes, JIT)
    assert encode(scheme, name, table, block, base, new, changes, REFERENCE) == data
    for kernels in (REFERENCE, JIT):
        reader = BucketReader(on_wire(data), anchor=False)
        target, found = reader.decode(picked(table, base, reader.changed), kernels)
        assert target.tobytes() == picked(table, new, reader.changed).tobytes()
        assert found.positions.tolist() == changes.positions.tolist()
    return reader


# -- any words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", SCHEMES)
@pytest.mark.parametrize("to", ["mirrored", "shuffled", "next"])
def test_every_bf16_pattern(to: str, values: ValueScheme) -> None:
    """All 65536 words before and after: signed zeros, infinities, NaN payloads, denormals."""
    base = np.arange(1 << 16, dtype=np.uint16)
    new = {"mirrored": base[::-1].copy(), "shuffled": np.random.default_rng(0).permutation(base), "next": base + 1}[to]
    table = block_table([Span(0, 0, len(base))], 1 << 12)
    changes = JIT.changes(base, new, table.offset, table.size)
    # Random words would rather travel whole, which is not what this is about: zeros between leave them sparse.
    wide, after = np.zeros((1 << 16, 5), np.uint16), np.zeros((1 << 16, 5), np.uint16)
    wide[:, 2], after[:, 2] = base, new
    reader = check(Scheme("class", values), "bf16", wide.reshape(-1), after.reshape(-1))
    assert reader.by_class and not reader.dense.any()
    assert len(changes.positions) >= (1 << 16) - 8


@pytest.mark.parametrize("name", ["bool", "u8", "i64", "bf16be", "raw3", "f64", "f8e5m2"])
@pytest.mark.parametrize("values", SCHEMES)
def test_the_ends_of_a_bucket_alone(name: str, values: ValueScheme) -> None:
    kind = dtype(name)
    base = random_words(kind, 3000, np.random.default_rng(4))
    for at in ([0], [2999], [0, 2999], [1023, 1024]):
        new = base.copy()
        new[at] ^= base.dtype.type(1)
        assert check(Scheme("class", values, None), name, base, new, 1024).by_class


def test_dense_and_class_blocks_side_by_side() -> None:
    rng = np.random.default_rng(0)
    base = random_words(dtype("f32"), 64 * 64, rng)
    new = base.copy()
    new.reshape(64, 64)[::3] = random_words(dtype("f32"), 22 * 64, rng).reshape(22, 64)
    new[64::192] += np.uint32(1)
    for values in SCHEMES:
        reader = check(Scheme("class", values), "f32", base, new, 64)
        assert reader.by_class
        assert reader.dense.tolist() == [k % 3 == 0 for k in range(64)]
        assert reader.sparse.tolist() == [k % 3 == 1 for k in range(64)]


@given(bucket_cases(), st.sampled_from(SCHEMES), seeds)
def test_another_baseline_is_found_out(case: BucketCase, values: ValueScheme, seed: int) -> None:
    """Decoded against other words: refused, or words whose digests do not match; the same in both rooms."""
    data = coded(Scheme("class", values), case.kind.name, case.table, case.block, case.base, case.new)
    other = random_words(case.kind, len(case.base), np.random.default_rng(seed))
    outcomes = []
    for kernels in (REFERENCE, JIT):
        reader = BucketReader(on_wire(data), anchor=False)
        base = picked(case.table, other, reader.changed)
        blocks = np.flatnonzero(reader.changed)
        mine = case.table.select(blocks)
        try:
            target, _ = reader.decode(base, kernels)
        except CorruptInput as error:
            outcomes.append(str(error))
            continue
        outcomes.append(target.tobytes().hex())
        for k, block in enumerate(blocks.tolist()):
            right = (
                target[mine.offset[k] : mine.offset[k] + mine.size[k]].tobytes()
                == case.table.view(case.new, block).tobytes()
            )
            assert (block_digest(mine.view(target, k)) == reader.target[block]) == right
    assert outcomes[0] == outcomes[1]


# -- sizes and the choice -------------------------------------------------------------------------------------

WORDS = 1 << 21


def adam(rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights of several spreads, and the same after a step of about one size for all of them (see synth)."""
    rng = np.random.default_rng(11)
    spread = np.repeat(np.array([0.008, 0.012, 0.018, 0.025, 0.035, 0.05, 0.07, 0.1], np.float32), WORDS // 8)
    masters = rng.standard_normal(WORDS).astype(np.float32) * spread
    step = rng.standard_normal(WORDS).astype(np.float32) * np.float32(0.23 * rate)
    return round_bf16(masters), round_bf16(masters - step)


def floor_bits(base: np.ndarray, new: np.ndarray) -> float:
    """Entropy of which words changed, and of the ulp difference of those, both given the baseline's exponent."""
    bits = 0.0
    exponents = base >> 7 & 0xFF
    hit = base != new
    values = JIT.difference("ulp", base[hit], new[hit], dtype("bf16"))
    for e in np.unique(exponents).tolist():
        here = exponents == e
        n, k = int(here.sum()), int((here & hit).sum())
        if 0 < k < n:
            bits -= k * math.log2(k / n) + (n - k) * math.log2(1 - k / n)
        seen = np.unique(values[exponents[hit] == e], return_counts=True)[1]
        bits -= float((seen * np.log2(seen / max(k, 1))).sum())
    return bits


def size_of(scheme: Scheme, base: np.ndarray, new: np.ndarray) -> int:
    return len(coded(scheme, "bf16", block_table([Span(0, 0, len(base))], 1 << 18), 1 << 18, base, new))


@pytest.mark.parametrize("rate", [1.15e-6, 4.2e-6, 8.2e-6], ids=["1 %", "3 %", "5 %"])
def test_at_the_entropy_floor(rate: float) -> None:
    """All but the digests within 3 % of what the change rate of each exponent allows at all."""
    base, new = adam(rate)
    size, plain = (size_of(Scheme(p), base, new) for p in ("class", "plain"))
    digests = 32 * (WORDS >> 18)
    assert 8 * (size - digests) < 1.03 * floor_bits(base, new)
    assert size < 0.85 * plain
    assert size_of(Scheme("auto"), base, new) == size


def test_auto_weighs_size_against_speed() -> None:
    base, new = adam(4.2e-6)
    by = {p: size_of(Scheme(p), base, new) for p in ("class", "plain")}
    for link, wanted in ((None, "class"), (1e6, "class"), (1e12, "plain")):
        assert size_of(Scheme("auto", link=link), base, new) == by[wanted]
    # Values that the class coder does not carry cost the same in both forms: they must not tip the balance.
    for values in ("xor", "overwrite"):
        sizes = {p: size_of(Scheme(p, values), base, new) for p in ("class", "plain", "auto")}
        assert sizes["auto"] == min(sizes.values())


@pytest.mark.parametrize("level", [None, 1])
def test_auto_is_about_the_smaller_form(level: int | None) -> None:
    rng = np.random.default_rng(5)
    for name in ("u8", "i32", "bf16", "f32"):
        kind = dtype(name)
        base = random_words(kind, 1 << 14, rng)
        for chance in (0.0002, 0.01, 0.2):
            for values in SCHEMES:
                new = base.copy()
                hit = rng.random(len(base)) < chance
                new[hit] ^= base.dtype.type(1)
                table = block_table([Span(0, 0, len(base))], 1 << 12)
                sizes = {
                    p: len(coded(Scheme(p, values, level), name, table, 1 << 12, base, new))
                    for p in ("class", "plain", "auto")
                }
                assert sizes["auto"] <= 1.02 * min(sizes["class"], sizes["plain"]) + 40, (name, chance, values, sizes)


@pytest.mark.parametrize("period", [4, 8, 1024])
def test_exponents_that_only_a_sample_or_never_a_sample_sees(period: int) -> None:
    """Words interleaved with the sample's period: a few changes among words that the sample took for rare."""
    n = 1 << 18
    base = np.where(np.arange(n) % period == 0, 120 << 7, 130 << 7).astype(np.uint16)
    for hits in ([1, 5001, n - 1], [0, 4 * period], list(range(0, n, 4 * period))):
        new = base.copy()
        new[hits] += np.uint16(1)
        table = block_table([Span(0, 0, n)], 1 << 14)
        sizes = {p: len(coded(Scheme(p, level=None), "bf16", table, 1 << 14, base, new)) for p in ("class", "plain")}
        assert sizes["class"] < 1.2 * sizes["plain"] + 100, sizes
        check(Scheme("class"), "bf16", base, new)


def test_a_large_bucket_is_sampled_by_fewer_words() -> None:
    """Of 2^22 words every ninth is looked at; words interleaved with that period do not mislead for long."""
    n = 1 << 22
    base = np.where(np.arange(n) % 9 == 0, 120 << 7, 130 << 7).astype(np.uint16)
    new = base.copy()
    new[:: 9 * 64] += np.uint16(1)
    table = block_table([Span(0, 0, n)], 1 << 18)
    sizes = {p: len(coded(Scheme(p, level=None), "bf16", table, 1 << 18, base, new)) for p in ("class", "plain")}
    assert sizes["class"] < sizes["plain"], sizes
    reader = BucketReader(on_wire(coded(Scheme("class"), "bf16", table, 1 << 18, base, new)), anchor=False)
    assert reader.by_class and reader.decode(base, JIT)[0].tobytes() == new.tobytes()


@given(bucket_cases(), st.sampled_from([1, 4]))
def test_what_an_encoder_writes_a_reader_takes(case: BucketCase, step: int) -> None:
    """The reader's bound on code, which keeps a bomb small, is over what any model that is fitted needs."""
    changes = JIT.changes(case.base, case.new, case.table.offset, case.table.size)
    if not len(changes.positions):
        return
    values = JIT.difference("ulp", changes.old, changes.new, case.kind)
    words = int(case.table.size.sum())
    model, bits = fit(case.kind, case.base, case.table, changes, values, JIT, step)
    code = class_code(JIT, model, case.base, case.table.offset, case.table.size, changes, values)
    if step == 1:
        assert code.nbytes <= most_code(case.kind, len(values), words)
        assert code.nbytes <= bits / 8 * 1.03 + words / (1 << 18) + 12
    read, bound, total = unpack_model(pack_model(model, len(values)), case.kind, words)
    assert (bound.log2, total) == (model.log2, len(values))
    for name in ("rate", "context", "start", "size", "shift", "mask"):
        assert np.array_equal(getattr(read, name), getattr(model, name))


def test_one_change_in_each_of_the_largest_blocks() -> None:
    """Where the finest rate is still too coarse: what passing 2^24 words costs is within the reader's bound."""
    base = np.zeros(6 << 24, np.uint8)
    new = base.copy()
    new[5 :: 1 << 24] = 1
    table = block_table([Span(0, 0, len(base))], 1 << 24)
    reader = BucketReader(on_wire(coded(Scheme("class"), "u8", table, 1 << 24, base, new)), anchor=False)
    assert reader.by_class and reader.decode(base, JIT)[0].tobytes() == new.tobytes()
