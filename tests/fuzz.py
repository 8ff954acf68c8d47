"""Mutated parts against the reader, as many as one likes: ``python -m tests.fuzz --count 1000000``.

Parts of every scheme are damaged in their bytes, or in what a stream holds, which gets past the framing; the trailer
is made right again, as an attacker would. Each is then read as a receiver reads it. What may come out is words of the
right number, or CorruptInput.

With NUMBA_BOUNDSCHECK=1 (and a NUMBA_CACHE_DIR of its own) every access of a kernel is checked as well.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dcr_mpi.codec import BucketReader, Cover, Scheme, block_table, encode
from dcr_mpi.codec.varints import pack_varints, unpack_varints
from dcr_mpi.codec.walk import CODE, MODEL
from dcr_mpi.digest import block_digest
from dcr_mpi.dtypes import dtype
from dcr_mpi.errors import CorruptInput
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import ValueScheme
from dcr_mpi.layout import Span
from dcr_mpi.wire import Bucket, PartHeader, Stream, pack_bucket, pack_part, unpack_part
from tests.strategies import random_words, word_type

REFERENCE, JIT = get_kernels("numpy"), get_kernels("numba")
NAMES = ("bf16", "f32", "f16", "f8e4m3", "f64", "u8", "bool", "i64", "bf16be", "raw6")
BLOCK, ROW = 64, 16


@dataclass
class Sample:
    """A good part, what its buckets hold unpacked, and the baseline that they were made from."""

    part: bytes
    anchor: bool
    buckets: list[Bucket] = field(default_factory=list)
    base: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # by tile and first word of a block
    spans: list[Span] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


@dataclass
class Report:
    """How a campaign went: mutants refused, decoded to the target, decoded to other words; the slowest; memory."""

    verdicts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds
    grown: int = 0  # bytes of resident memory, at the highest


def samples(names: Sequence[str], rng: np.random.Generator) -> list[Sample]:
    """Parts of one to three buckets over all schemes, changed here and there, in steps, or altogether."""
    out = []
    for turn in range(20 * len(names)):
        anchor = turn % 10 == 9
        kinds = [names[(turn + k) % len(names)] for k in range(int(rng.integers(1, 4)))]
        sample, packed, tile = Sample(b"", anchor), [], 0
        for name in kinds:
            tile += 1
            spans = [Span(tile, 64 * int(rng.integers(0, 3)), 0), Span(tile + 1, 0, 0)][: int(rng.integers(1, 3))]
            spans = [Span(s.tile, s.start, s.start + int(rng.integers(1, 400))) for s in spans]
            tile += 1
            table = block_table(spans, BLOCK)
            base = random_words(dtype(name), table.length, rng)
            if turn % 2 and name == "bf16":
                base = np.full(table.length, 0x3F80, np.uint16) + rng.integers(0, 3, table.length).astype(np.uint16)
            new = base.copy()
            for k in range(len(table)):
                view = table.view(new, k)
                hit = rng.random(len(view)) < rng.choice([0, 0.02, 0.1, 1])
                if turn % 4 == 3:
                    hit &= np.arange(len(view)) // ROW % 2 == 0  # idle rows
                view[hit] += view.dtype.type(1)
                view[hit & (rng.random(len(view)) < 0.3)] ^= view.dtype.type(rng.integers(1, 128))
            changes = None if anchor else JIT.changes(base, new, table.offset, table.size)
            values: ValueScheme = ("ulp", "xor", "overwrite")[turn % 3]
            positions = ("class", "plain", "class", "auto", "dense")[turn % 5]
            scheme = Scheme(positions, values, (None, 1)[turn // 2 % 2])
            before = None if anchor else base
            packed.append(encode(scheme, name, table, BLOCK, before, new, changes, JIT, ROW))
            for k in range(len(table)):
                sample.base[table.spans[table.span[k]].tile, int(table.start[k])] = table.view(base, k)
            sample.spans += spans
            sample.names |= {s.tile: name for s in spans}
        header = PartHeader(b"p" * 16, b"t" * 16, 7, None if anchor else 6, 3, len(packed))
        sample.part = pack_part(header, packed)
        for bucket in unpack_part(sample.part, "sample")[1]:
            streams = {n: s.unpack("s", 1 << 20) for n, s in bucket.streams.items() if isinstance(s, Stream)}
            sample.buckets.append(Bucket(bucket.positions, bucket.values, bucket.block_log2, bucket.dtype, streams))
        out.append(sample)
    return out


def flip(data: bytearray, rng: np.random.Generator, ways: int = 6) -> None:
    """Damage bytes in place: bits, a byte, an addition, a cut, or a piece moved; the first 3 ways keep the length."""
    how = int(rng.integers(0, ways)) if data else 3
    if how in (0, 1):
        for _ in range(1 + 2 * how):
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
    elif how == 2:
        data[int(rng.integers(0, len(data)))] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(0, 256))]))
    elif how == 3:
        data += rng.bytes(int(rng.integers(1, 9)))
    elif how == 4:
        del data[int(rng.integers(0, len(data))) :]
    else:
        a, b, n = rng.integers(0, len(data), 3).tolist()
        data[a : a + n % 40] = data[b : b + int(rng.integers(0, 40))]


def renumber(streams: dict[int, bytes], rng: np.random.Generator) -> None:
    """Another class model: a number or two changed, sometimes so that frequencies still add up; or other code."""
    try:
        numbers = list(unpack_varints(streams[MODEL], "model"))
    except CorruptInput:
        return
    if rng.random() < 0.3:
        streams[CODE] = rng.bytes(4 * int(rng.integers(2, 40)))
    elif len(numbers) > 1:
        a, b = rng.integers(0, len(numbers), 2).tolist()
        step = int(rng.choice([1, -1, 2, 100, -100, 1 << 40]))
        numbers[a] = min(max(numbers[a] + step, 0), 2**63 - 1)
        if rng.random() < 0.5:
            numbers[b] = min(max(numbers[b] - step, 0), 2**63 - 1)
        streams[MODEL] = pack_varints(numbers)


def mutant(pool: Sequence[Sample], sample: Sample, rng: np.random.Generator) -> bytes:
    """A damaged part with a right trailer."""
    if rng.random() < 0.25:
        body = bytearray(sample.part[:-16])
        flip(body, rng)
        return bytes(body) + block_digest(body)
    buckets = list(sample.buckets)
    k = int(rng.integers(0, len(buckets)))
    bucket, head = buckets[k], [buckets[k].positions, buckets[k].values, buckets[k].block_log2]
    streams = {n: bytes(raw) for n, raw in bucket.streams.items() if not isinstance(raw, Stream)}
    name = bucket.dtype
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        number = int(rng.choice(list(streams))) if streams else 1
        how = int(rng.integers(0, 24))
        if how == 0:
            head[int(rng.integers(0, 3))] = int(rng.choice([0, 1, 2, 3, 6, 7, 12, 24, 255]))
        elif how == 1:
            name = str(rng.choice(NAMES))
        elif how == 2:
            streams.pop(number, None)
        elif how == 3:  # what another bucket has there
            other = pool[int(rng.integers(0, len(pool)))].buckets[0].streams
            streams |= {n: bytes(other[n]) for n in (number,) if n in other}  # type: ignore[arg-type]
        elif how == 4:
            streams[int(rng.integers(1, 40))] = rng.bytes(int(rng.integers(1, 20)))
        elif how < 12 and MODEL in streams:
            renumber(streams, rng)
        else:
            raw = bytearray(streams.get(number, b""))
            flip(raw, rng, 6 if how > 20 else 3)
            streams[number] = bytes(raw)
    buckets[k] = Bucket(head[0], head[1], head[2], name, streams)
    level = 1 if rng.random() < 0.2 else None
    header = PartHeader(b"p" * 16, b"t" * 16, 7, None if sample.anchor else 6, 3, len(buckets))
    return pack_part(header, [pack_bucket(b, level) for b in buckets])


def receive(part: bytes, sample: Sample, twice: bool) -> str:
    """Read a part as a receiver does; the verdict."""
    right = True
    try:
        cover = Cover("part", sample.spans, sample.names, BLOCK)
        _, buckets = unpack_part(part, "part", cover.buckets)
        for bucket in buckets:
            reader = BucketReader(bucket, sample.anchor)
            cover.take(reader)
            blocks = np.flatnonzero(reader.changed)
            mine = reader.table.select(blocks)
            base = np.zeros(mine.length, word_type(reader.dtype))
            for k in range(len(mine)):
                held = sample.base.get((mine.spans[mine.span[k]].tile, int(mine.start[k])))
                if held is not None and not sample.anchor:
                    mine.view(base, k)[: len(held)] = held[: int(mine.size[k])]
            kept = base.copy()
            target, changes = reader.decode(base, JIT)
            assert len(target) == len(base)
            assert len(changes.counts) == len(blocks)
            assert (changes.counts <= mine.size).all()
            assert (base == kept).all()
            if twice:
                again, _ = BucketReader(bucket, sample.anchor).decode(base, REFERENCE)
                assert again.tobytes() == target.tobytes()
            right &= all(block_digest(mine.view(target, k)) == reader.target[b] for k, b in enumerate(blocks.tolist()))
    except CorruptInput:
        return "refused"
    return "decoded to the target" if right else "decoded to other words"


def campaign(seed: int, count: int, names: Sequence[str] = NAMES) -> Report:
    """Read ``count`` mutants; every 64th of them in both rooms."""
    rng = np.random.default_rng(seed)
    pool = samples(names, rng)
    for sample in pool:
        assert receive(sample.part, sample, twice=True) == "decoded to the target"
    report = Report()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(count):
        sample = pool[int(rng.integers(0, len(pool)))]
        part = mutant(pool, sample, rng)
        start = time.monotonic()
        try:
            verdict = receive(part, sample, twice=turn % 64 == 0)
        except BaseException:
            print(f"seed {seed}, mutant {turn}: {part.hex()}", file=sys.stderr)
            raise
        report.verdicts[verdict] += 1
        report.slowest = max(report.slowest, time.monotonic() - start)
    report.grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return report


def bounds_are_checked() -> bool:
    """Whether a kernel that reads outside its array says so."""
    one = np.zeros(1, np.int64)
    try:
        JIT.gather(np.zeros(4, np.uint16), one, one + 1, np.array([1 << 16], np.uint32))
    except IndexError:
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--names", nargs="+", default=NAMES)
    options = parser.parse_args()
    if os.environ.get("NUMBA_BOUNDSCHECK") == "1":
        assert bounds_are_checked(), "NUMBA_BOUNDSCHECK has no effect: give it a NUMBA_CACHE_DIR of its own"
    start = time.monotonic()
    report = campaign(options.seed, options.count, options.names)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(report.verdicts.items()))
    print(
        f"{options.count} mutants in {time.monotonic() - start:.0f} s: {verdicts}; "
        f"slowest {report.slowest:.3f} s, memory grew by {report.grown >> 20} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
