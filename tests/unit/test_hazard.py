"""The class coder's kernels: its tables are exact, both rooms write and read the same, and hostile code ends soon."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.codec.classes import field
from dcr_mpi.dtypes import DType, dtype
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Changes
from dcr_mpi.kernels.hazard import DIRECT, MAX_LOG2, MIN_LOG2, ONE, Model, axis, tokens, value_tokens
from dcr_mpi.kernels.jitting import count_up_to, high_product, jit, leading_zeros
from tests.strategies import BucketCase, bucket_cases, class_code, random_words, seeds, word_type

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")
EVERY_LOG2 = pytest.mark.parametrize("log2", range(MIN_LOG2, MAX_LOG2 + 1))
Decoded = tuple[int, np.ndarray, np.ndarray, np.ndarray]


# -- tables ---------------------------------------------------------------------------------------------------


@EVERY_LOG2
def test_the_axis_is_exact(log2: int) -> None:
    """Every entry is the floor of the real number, whatever the machine: checked with 40 digits."""
    table, steps = axis(log2).halving.tolist(), 1 << log2
    some = range(steps) if log2 <= 10 else [*range(50), *range(50, steps, 97), *range(steps - 50, steps)]
    with localcontext() as context:
        context.prec = 40
        assert all(table[j] == int(Decimal(2) ** (30 - Decimal(j) / steps)) for j in some)


@EVERY_LOG2
def test_every_hazard_has_an_interval_and_is_found_again(log2: int) -> None:
    a, steps = axis(log2), 1 << log2
    x = np.arange(a.end + 1)
    below = ONE - (a.halving.astype(np.int64)[x % steps] >> (x >> log2))
    assert below[0] == 0
    assert ONE - below[-1] == 4 << log2 == ONE >> (28 - log2)
    assert (np.diff(below) > 0).all()
    for slot in (below[:-1], below[1:] - 1):  # the first and the last slot of [C(x), C(x + 1))
        mass = ONE - slot
        halvings = 30 - np.ceil(np.log2(mass)).astype(np.int64)
        mass <<= halvings
        assert (mass > ONE >> 1).all() and (mass <= ONE).all()
        first = (ONE - mass) >> (29 - log2)
        assert first.min() >= 0 and first.max() < len(a.inverse) == steps
        guess = (halvings << log2) + a.inverse[first]
        assert (guess <= x[:-1]).all() and (guess >= x[:-1] - 2).all()  # never over, and two steps off at most


@jit
def _words_of_llvm(
    a: np.uint64, b: np.uint64, numbers: np.ndarray, first: np.uint64, bound: np.int32
) -> tuple[int, ...]:
    return high_product(a, b), leading_zeros(a), count_up_to(numbers, first, bound)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 16), seeds)
def test_what_is_written_in_llvm(a: int, b: int, first: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, 80).astype(np.int32)
    bound = int(numbers[seed % 80])
    found = _words_of_llvm(np.uint64(a), np.uint64(b), numbers, np.uint64(first), np.int32(bound))
    assert found == ((a * b) >> 64, 64 - a.bit_length(), int((numbers[first : first + 64] <= bound).sum()))


def test_value_tokens() -> None:
    near = {max((1 << k) + d, 0) for k in range(64) for d in (-1, 0, 1)} | {(3 << k) - 1 for k in range(63)}
    values = np.array(sorted({*range(70000), *near, 2**64 - 1}), np.uint64)
    wanted = [
        v if v < DIRECT else 16 + 2 * (v.bit_length() - 5) + (v >> (v.bit_length() - 2) & 1) for v in values.tolist()
    ]
    assert value_tokens(values).tolist() == wanted
    for width in (1, 2, 4, 8):
        assert int(value_tokens(np.array([256**width - 1], f"u{width}"))[0]) == tokens(width) - 1


# -- both rooms -----------------------------------------------------------------------------------------------


def some_model(kind: DType, rng: np.random.Generator, rates: str) -> Model:
    """A model with a few classes over the exponents, every token possible in each of them."""
    shift, mask = field(kind)
    log2 = int(rng.integers(MIN_LOG2, MAX_LOG2 + 1))
    classes = int(rng.integers(1, min(mask + 1, 9) + 1))
    edges = np.sort(rng.permutation(mask)[: classes - 1] + 1)
    context = np.searchsorted(edges, np.arange(mask + 1), side="right")
    most = axis(log2).end // 2
    rate = {
        "fine": rng.integers(1, 4, classes),
        "any": rng.integers(1, most + 1, classes),
        "most": np.full(classes, most),
        "zero": np.zeros(classes, np.int64),
        "mixed": rng.choice([0, 1, most], classes),
    }[rates]
    size = np.ones((classes, tokens(kind.word_bytes)), np.int64)
    for row in size:
        row += rng.multinomial((1 << 12) - len(row), rng.dirichlet(np.full(len(row), 0.2)))
    return Model(shift, mask, log2, rate[context].astype(np.int64), context, np.cumsum(size, axis=1) - size, size)


def changes_of(case: BucketCase) -> tuple[Changes, np.ndarray]:
    found = REFERENCE.changes(case.base, case.new, case.table.offset, case.table.size)
    return found, REFERENCE.difference("ulp", found.old, found.new, case.kind)


def decoded(model: Model, case: BucketCase, total: int, code: np.ndarray, base: np.ndarray | None = None) -> Decoded:
    """What both rooms make of a code, which must be the same, faults too."""
    base = case.base if base is None else base
    arguments = (model, axis(model.log2), base, case.table.offset, case.table.size, total, code)
    a, b = REFERENCE.hazard_decode(*arguments), JIT.hazard_decode(*arguments)
    assert a[0] == b[0]
    if a[0] >= 0:
        for x, y in zip(a[1:], b[1:], strict=True):
            assert (x.dtype, x.tolist()) == (y.dtype, y.tolist())
    return b


@given(bucket_cases())
def test_changes_are_told_by_exponent_and_token(case: BucketCase) -> None:
    changes, coded = changes_of(case)
    shift, mask = field(case.kind)
    wanted = np.zeros((mask + 1, tokens(case.kind.word_bytes)), np.int64)
    for old, token in zip(changes.old.tolist(), value_tokens(coded).tolist(), strict=True):
        wanted[old >> shift & mask, token] += 1
    for room in (REFERENCE, JIT):
        found = room.tallies(changes.old, coded, shift, mask)
        assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())


@given(bucket_cases(), seeds, st.sampled_from(["fine", "any", "most"]))
def test_rooms_write_and_read_the_same(case: BucketCase, seed: int, rates: str) -> None:
    """Any model that gives every word a rate codes any change, however badly: gaps run far past the axis' end."""
    model = some_model(case.kind, np.random.default_rng(seed), rates)
    changes, coded = changes_of(case)
    arguments = (model, case.base, case.table.offset, case.table.size, changes, coded)
    code = class_code(REFERENCE, *arguments)
    assert code.dtype == np.uint32
    assert class_code(JIT, *arguments).tolist() == code.tolist()
    used, counts, positions, values = decoded(model, case, len(coded), code)
    assert used == len(code)
    assert counts.tolist() == changes.counts.tolist()
    assert positions.tolist() == changes.positions.tolist()
    assert values.tolist() == coded.tolist()


def one_block(kind: DType, base: np.ndarray, at: list[int], values: list[int]) -> tuple[Changes, np.ndarray]:
    words = np.array(values, np.uint64).astype(base.dtype)
    positions = np.array(at, np.uint32)
    return Changes(np.array([len(at)], np.int64), positions, base[positions], words), words


@pytest.mark.parametrize("name", ["u8", "bf16", "f32", "u64"])
def test_values_of_every_length(name: str) -> None:
    """Up to 62 raw bits after the token, in chunks of 16."""
    kind = dtype(name)
    bits = 8 * kind.word_bytes
    values = [v for k in range(bits) for v in (1 << k, (2 << k) - 1, (1 << k) | 0x5A5A5A5A5A5A5A5A & ((1 << k) - 1))]
    base = np.zeros(len(values) * 3, word_type(kind))
    changes, coded = one_block(kind, base, list(range(0, len(base), 3)), values)
    model = some_model(kind, np.random.default_rng(0), "any")
    where = np.zeros(1, np.int64), np.array([len(base)], np.int64)
    for kernels in (REFERENCE, JIT):
        code = class_code(kernels, model, base, *where, changes, coded)
        used, _, _, found = kernels.hazard_decode(model, axis(model.log2), base, *where, len(values), code)
        assert used == len(code)
        assert found.tolist() == coded.tolist() == values


@pytest.mark.parametrize("at", [[0], [(1 << 22) - 1], [0, (1 << 22) - 1], [3000000]])
@pytest.mark.parametrize("rates", ["fine", "most"])
def test_few_changes_in_a_large_block(at: list[int], rates: str) -> None:
    """Four million words, each of them half the axis: two million escapes; or none, at the finest rates."""
    kind, size = dtype("u8"), 1 << 22
    base = np.zeros(size, np.uint8)
    model = some_model(kind, np.random.default_rng(1), rates)
    changes, coded = one_block(kind, base, at, [7] * len(at))
    where = np.zeros(1, np.int64), np.array([size], np.int64)
    code = class_code(JIT, model, base, *where, changes, coded)
    used, counts, positions, values = JIT.hazard_decode(model, axis(model.log2), base, *where, len(at), code)
    assert (used, counts.tolist(), positions.tolist(), values.tolist()) == (len(code), [len(at)], at, [7] * len(at))
    if rates == "fine":
        assert class_code(REFERENCE, model, base, *where, changes, coded).tolist() == code.tolist()
        assert REFERENCE.hazard_decode(model, axis(model.log2), base, *where, len(at), code)[0] == len(code)


# -- hostile code ---------------------------------------------------------------------------------------------


@given(bucket_cases(), seeds, st.sampled_from(["fine", "any", "most", "zero", "mixed"]), st.integers(0, 5))
def test_hostile_code_has_one_verdict(case: BucketCase, seed: int, rates: str, how: int) -> None:
    """Both rooms refuse or read the same of noise, of cut, longer and flipped code, and on another baseline."""
    rng = np.random.default_rng(seed)
    model = some_model(case.kind, rng, rates)
    changes, coded = changes_of(case)
    code, total, base = (
        rng.integers(0, 2**32, int(rng.integers(0, 40)), dtype=np.uint64).astype(np.uint32),
        len(coded),
        case.base,
    )
    if how and (model.rate > 0).all():
        code = class_code(JIT, model, base, case.table.offset, case.table.size, changes, coded)
        if how == 1:
            code = code[: int(rng.integers(0, len(code)))]
        elif how == 2:
            code = np.append(code, rng.integers(0, 2**32, 3).astype(np.uint32))
        elif how == 3:
            code[rng.integers(0, len(code), 2)] ^= np.uint32(1) << rng.integers(0, 32, 2).astype(np.uint32)
        elif how == 4:
            base = random_words(case.kind, len(base), rng)
        else:
            total = int(rng.integers(0, 2 * total + 2))
    used, counts, positions, _ = decoded(model, case, total, code, base)
    assert used <= len(code)
    if used >= 0:
        assert int(counts.sum()) == total == len(positions)
        assert (positions < np.repeat(case.table.size, counts)).all()
        steps = np.diff(positions.astype(np.int64))
        steps[np.cumsum(counts[:-1])[(np.cumsum(counts[:-1]) > 0) & (np.cumsum(counts[:-1]) < total)] - 1] = 1
        assert (steps > 0).all()


@pytest.mark.parametrize("rate", [0, 1, -1], ids=["none changes", "finest", "coarsest"])
@pytest.mark.parametrize("words", ["zeros", "ones", "noise"])
def test_decoding_is_bounded_by_words_and_code(rate: int, words: str) -> None:
    """A model that says nothing, or everything, changes, asked for as many changes as there are words."""
    kind, size = dtype("f32"), 1 << 21
    shift, mask = field(kind)
    base = np.random.default_rng(0).integers(0, 2**32, size, dtype=np.uint64).astype(np.uint32)
    where = np.zeros(1, np.int64), np.array([size], np.int64)
    value = np.array([[1 << 12]], np.int64)
    full = (1 << 32) - 1
    for log2 in (MIN_LOG2, MAX_LOG2):
        own = axis(log2).end // 2 if rate < 0 else rate
        model = Model(shift, mask, log2, np.full(mask + 1, own), np.zeros(mask + 1, np.int64), 0 * value, value)
        code = {
            "zeros": np.zeros(size, np.uint32),
            "ones": np.full(size, full, np.uint32),
            "noise": base[::-1].copy(),
        }[words]
        code[0] |= 1
        start = time.monotonic()
        used, counts, _, _ = JIT.hazard_decode(model, axis(log2), base, *where, size, code)
        assert time.monotonic() - start < 10  # some hundredths of a second, and a compilation
        assert used <= size and int(counts.sum()) <= size
        if rate == 0:
            assert used < 0


def test_a_state_below_its_range_is_refused() -> None:
    kind = dtype("u8")
    model = some_model(kind, np.random.default_rng(0), "any")
    where = np.zeros(1, np.int64), np.array([64], np.int64)
    for kernels in (REFERENCE, JIT):
        for code in ([], [1], [0, 5], [0, 2**32 - 1, 7, 7, 7, 7]):
            words = np.array(code, np.uint32)
            assert kernels.hazard_decode(model, axis(model.log2), np.zeros(64, np.uint8), *where, 1, words)[0] < 0


def test_no_words_hold_no_change() -> None:
    model = replace(some_model(dtype("u8"), np.random.default_rng(0), "any"))
    none = np.zeros(0, np.int64)
    for kernels in (REFERENCE, JIT):
        code = np.array([9, 9], np.uint32)
        assert kernels.hazard_decode(model, axis(model.log2), np.zeros(0, np.uint8), none, none, 1, code)[0] < 0
