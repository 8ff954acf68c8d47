"""The CUDA kernels, executed on the CPU: bytes of the numpy room, on a full device too; and a broken one is caught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from dcr_mpi.codec import BucketReader, Scheme, encode
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels.device import DeviceKernels, source
from dcr_mpi.wire import PartHeader, pack_part, unpack_part
from tests.gpu.rooms import CHECKS, REFERENCE, every_way, large
from tests.gpu.shim import ShimDevice, needs_compiler
from tests.strategies import DTYPES, BucketCase, bucket_cases

pytestmark = needs_compiler
KERNELS = {
    "changes": {"count_changes", "block_sums", "emit_changes"},
    "gather": {"gather"},
    "scatter": {"scatter"},
    "exponents": {"exponents"},
    "hazards": {"sum_rates", "hazards"},
    "state_words": {"state_words", "block_sums"},
    "state_changes": {"state_changes", "block_sums"},
}
ONE_OF_EACH_WIDTH = ("f8e4m3", "bf16", "f32", "f64", "i64")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", DTYPES)
def test_bytes_of_the_numpy_room(check: str, name: str) -> None:
    device = ShimDevice()
    CHECKS[check](DeviceKernels(device), every_way(name))
    assert set(device.launched) == KERNELS[check]
    assert device._used == 0


@given(bucket_cases())
@settings(max_examples=40)
def test_any_bucket(case: BucketCase) -> None:
    kernels = DeviceKernels(ShimDevice())
    for check in CHECKS.values():
        check(kernels, case)


@pytest.mark.parametrize("words", [(1 << 20) - 1, (1 << 20) + 65])
def test_many_launch_blocks(words: int) -> None:
    case = large(words, rate=0.3)
    for check in CHECKS.values():
        check(DeviceKernels(ShimDevice()), case)


def test_blocks_that_are_not_aligned() -> None:
    """Runs of touched rows begin anywhere."""
    case = every_way("bf16")
    case.table.offset[...] += np.arange(len(case.table)) % 2  # into the room behind, where there is some
    case.table.size[...] -= (case.table.size > 1) * 1
    for name in ("exponents", "hazards", "changes", "state_words"):
        CHECKS[name](DeviceKernels(ShimDevice()), case)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["bf16", "f64"])
def test_a_full_device_takes_halves_and_then_the_host(check: str, name: str) -> None:
    case = large(50_000, name, block=1 << 10)
    probe = ShimDevice()
    CHECKS[check](DeviceKernels(probe), case)
    rungs = set()
    need = 40 * case.base.nbytes
    for limit in [0, *(int(need * 0.75**k) for k in range(24))]:
        device = ShimDevice(limit)
        CHECKS[check](DeviceKernels(device), case)
        assert device._used == 0
        calls = 3 if check == "exponents" else 1
        rungs.add(device.full / calls if device.full in (0, calls, 2 * calls) else "between")
    assert rungs >= {0, 1, 2}, "a limit was met at which halves fit, and one at which nothing does"


@pytest.mark.parametrize("counts", [[0, 0, 5, 0, 0], [3, 0, 0, 0, 0], [0, 0, 0, 0, 2], [0, 0, 0, 0, 0]])
def test_hazards_run_on_from_half_to_half(counts: list[int]) -> None:
    case = every_way("bf16")
    case.new[...] = case.base
    blocks = np.linspace(0, len(case.table) - 1, 5).astype(int)
    for block, count in zip(blocks.tolist(), counts, strict=True):
        case.table.view(case.new, block)[:count] ^= 1
    halves = hazards_at_every_limit(case, source)
    assert halves or not any(counts), "some limit made halves fit"


def hazards_at_every_limit(case: BucketCase, text: Callable[[int], str]) -> int:
    """How many of the limits made the kernel take halves."""
    halves = 0
    for limit in range(600, 40_000, 400):
        device = ShimDevice(limit, text)
        CHECKS["hazards"](DeviceKernels(device), case)
        halves += device.full == 1
    return halves


def test_no_blocks_and_no_words_are_the_hosts() -> None:
    kernels = DeviceKernels(ShimDevice(0))
    none, empty = np.empty(0, np.int64), np.empty(0, np.uint16)
    assert len(kernels.changes(empty, empty, none, none).positions) == 0
    assert len(kernels.gather(empty, none, none, np.empty(0, np.uint32))) == 0
    assert kernels.exponents(empty, none, none, 7, 255, 4).tolist() == [0] * 256
    assert kernels.state_words(np.ones((0, 4), np.int64), empty, none, none).shape == (0, 2)


@pytest.mark.parametrize("name", ONE_OF_EACH_WIDTH)
@pytest.mark.parametrize("positions", ["class", "plain"])
def test_a_bucket_coded_and_decoded_on_the_device(name: str, positions: str) -> None:
    case, kernels = large(20_000, name, block=1 << 10), DeviceKernels(ShimDevice())
    packed = []
    for room in (kernels, REFERENCE):
        changes = room.changes(case.base, case.new, case.table.offset, case.table.size)
        packed.append(encode(Scheme(positions), name, case.table, case.block, case.base, case.new, changes, room))
    assert packed[0] == packed[1]
    header = PartHeader(bytes(16), bytes(16), 0, None, 0, 1)
    _, (bucket,) = unpack_part(pack_part(header, packed[:1]), "a bucket")
    reader = BucketReader(bucket, anchor=False)
    blocks = np.flatnonzero(reader.changed)
    mine = reader.table.select(blocks)
    before = np.zeros(mine.length, case.base.dtype)
    for k, block in enumerate(blocks.tolist()):
        mine.view(before, k)[...] = reader.table.view(case.base, block)
    target, _ = reader.decode(before, kernels)
    for k, block in enumerate(blocks.tolist()):
        assert mine.view(target, k).tobytes() == reader.table.view(case.new, block).tobytes()


# One wrong thing in each kernel, and in what they share: (what is there, what is put instead).
MUTANTS = {
    "find, an end": ("numbers[low + half] <= x", "numbers[low + half] < x"),
    "find, a step": ("n -= half;", "n = half;"),
    "chunk_at, a short chunk": ("size - inside < CHUNK ? size : inside + CHUNK", "inside + CHUNK"),
    "chunk_at, its begin": ("k.begin = k.offset + inside;", "k.begin = inside;"),
    "before": ("return c ? ends[c - 1] : 0;", "return c ? ends[c - 1] : 1;"),
    "block_sums": ("before(ends, table[b + 1]) - before(ends, table[b])", "before(ends, table[b + 1])"),
    "count_changes": ("n += base[i] != fresh[i];", "n += base[i] < fresh[i];"),
    "emit_changes, positions": ("(unsigned int)(i - k.offset)", "(unsigned int)(i - k.begin)"),
    "emit_changes, old": ("from[at] = base[i];", "from[at] = fresh[i];"),
    "emit_changes, new": ("to[at] = fresh[i];", "to[at] = base[i];"),
    "emit_changes, threads that are too many": ("if (c >= chunks) return;", "if (c > chunks) return;"),
    "gather": ("out[i] = words[offset_of(table, blocks, k.block) + positions[i]]", "out[i] = words[positions[i]]"),
    "scatter": ("+ positions[i]] = values[i];", "+ positions[i]] = values[k.begin];"),
    "exponents, the first barrier": ("bins[e] = 0;\n    __syncthreads();", "bins[e] = 0;"),
    "exponents, the second barrier": ("    __syncthreads();\n    for (u64 e", "    for (u64 e"),
    "exponents, bins left alone": ("bins[e] = 0;", ";"),
    "exponents, the step": ("+ step - 1) / step * step", ") / step * step"),
    "exponents, the sum": ("atomicAdd(&out[e], (u64)bins[e])", "out[e] = bins[e]"),
    "field": ("((u64)w >> shift) & mask", "(u64)w & mask"),
    "sum_rates": ("x += rate[field(base[i], shift, mask)];", "x += rate[field(base[k.begin], shift, mask)];"),
    "passed": ("i < position; i++", "i <= position; i++"),
    "hazards, between threads": ("if (k.begin) {", "if (0) {"),
    "hazards, between changes": ("out[i] = x - behind;", "out[i] = x;"),
    "hazards, between halves": ("before(ends, table[blocks]) - behind", "0"),
    "canonical, first word": ("k += row[0];", ""),
    "canonical, strides": ("* row[2 + dims + d]", "* row[2 + d]"),
    "mix": ("x ^= x >> 29;", "x ^= x >> 28;"),
    "second lane": ("(x ^ (x >> 31)) * MIX_E", "x * MIX_E"),
    "state_words": ("canonical(row, dims, i - k.offset)", "canonical(row, dims, i - k.begin)"),
    "state_changes": ("sum1 += second(x) - second(y);", "sum1 += second(x - y);"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_caught(mutant: str) -> None:
    there, instead = MUTANTS[mutant]
    assert there in source(16)

    def broken(bits: int) -> str:
        return source(bits).replace(there, instead)

    kernels = DeviceKernels(ShimDevice(text=broken))
    with pytest.raises(AssertionError):
        for check in CHECKS.values():
            for case in (every_way("bf16"), large(40_000, rate=0.3, block=1 << 10)):
                check(kernels, case)
        hazards_at_every_limit(every_way("bf16"), broken)


def test_the_dtypes_cover_every_width() -> None:
    assert {dtype(n).word_bytes for n in ONE_OF_EACH_WIDTH} == {1, 2, 4, 8}
