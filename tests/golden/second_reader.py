"""A second reader of parts, written from docs/format.md alone: plain Python integers, nothing of the package.

It is slow and trusts its input: what it is for is to show that the page says enough.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import islice

import xxhash
import zstandard

FLOATS = {"bf16": (8, 7), "f16": (5, 10), "f32": (8, 23), "f64": (11, 52), "f8e4m3": (4, 3), "f8e5m2": (5, 2)}
Words = dict[tuple[int, int], int]  # (tile, word of the tile) to the word


Step = tuple[int, int, int, int, int]  # state before, bits of the scale, slot, the interval's start and size


def read_part(
    data: bytes, before: list[Words], width_of: dict[str, int], steps: list[Step] | None = None
) -> list[Words]:
    """The changed blocks' words of each bucket, given the bucket's words before (for an anchor: nothing).

    ``steps`` takes down what the class coder's decoder does.
    """
    assert data[:12] == b"DCRPART\n\1\0\0\0"
    assert xxhash.xxh3_128_digest(data[:-16]) == data[-16:]
    (base,), (count,) = struct.unpack_from("<Q", data, 52), struct.unpack_from("<I", data, 64)
    at, after = 68, []
    assert count == len(before)
    for old in before:
        length, positions, values, log2, name, streams = struct.unpack_from("<IBBB8sB", data, at)
        dtype, inside, found = name.rstrip(b"\0").decode(), at + 16, {}
        for _ in range(streams):
            number, packing, size, here = struct.unpack_from("<BBII", data, inside)
            raw = data[inside + 10 : inside + 10 + here]
            found[number] = zstandard.ZstdDecompressor().decompress(raw) if packing else raw
            assert len(found[number]) == size
            inside += 10 + here
        at += 16 + length
        assert inside == at
        bucket = _Bucket(found, positions, values, 1 << log2, dtype, width_of[dtype], base == 2**64 - 1)
        bucket.steps = steps
        after.append(bucket.read(old))
    assert at == len(data) - 16
    return after


def varints(data: bytes) -> Iterator[int]:
    value, shift = 0, 0
    for byte in data:
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            yield value
            value, shift = 0, 0


class _Bucket:
    def __init__(
        self, streams: dict[int, bytes], positions: int, values: int, block: int, dtype: str, width: int, anchor: bool
    ) -> None:
        self.steps: list[Step] | None = None
        self.s, self.positions, self.values, self.width, self.anchor = streams, positions, values, width, anchor
        self.bits, self.float = 8 * width, FLOATS.get(dtype)
        self.ones, self.sign = (1 << self.bits) - 1, 1 << (self.bits - 1)
        self.blocks: list[list[tuple[int, int]]] = []  # coordinates of each block's words
        self.span_of: list[int] = []
        tile, numbers = 0, varints(streams[1])
        for span, step in enumerate(numbers):
            first, words = islice(numbers, 2)
            tile += step
            coordinates = [(tile, first * block + k) for k in range(words)]
            cut = [coordinates[k : k + block] for k in range(0, words, block)]
            self.blocks += cut
            self.span_of += [span] * len(cut)

    def read(self, old: Words) -> Words:
        every = range(len(self.blocks))
        changed = [b for b in every if self.anchor or self._bit(2, b)]
        dense = [b for b in changed if self.anchor or self._bit(3, b)]
        sparse = [b for b in changed if b not in dense]
        new: Words = {c: old[c] for b in sparse for c in self.blocks[b]}
        coordinates = [c for b in dense for c in self.blocks[b]]
        for coordinate, word in zip(coordinates, self._planes(32, len(coordinates)), strict=True):
            new[coordinate] = (word >> 1 | word << (self.bits - 1)) & self.ones if self.float else word
        if sparse:
            where, coded = self._by_class(sparse, old) if self.positions else self._plain(sparse)
            for coordinate, value in zip(where, coded, strict=True):
                new[coordinate] = self._value(old[coordinate], value)
        self._check_digests(changed, old, new)
        return new

    def _bit(self, number: int, k: int) -> bool:
        raw = self.s.get(number, b"")
        return bool(raw) and bool(raw[k // 8] >> k % 8 & 1)

    def _planes(self, first: int, count: int) -> list[int]:
        return [sum(self.s[first + k][i] << 8 * k for k in range(self.width)) for i in range(count)]

    def _words(self, number: int, size: int) -> list[int]:
        raw = self.s.get(number, b"")
        return [int.from_bytes(raw[k : k + size], "little") for k in range(0, len(raw), size)]

    def _plain(self, sparse: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
        gaps, escapes, where = iter(self.s[8]), iter(self._words(9, 4)), []
        for block, count in zip(sparse, self._words(4, 4), strict=True):
            at = -1
            for gap in islice(gaps, count):
                at += 1 + (next(escapes) if gap == 255 else gap)
                where.append(self.blocks[block][at])
        return where, self._coded(len(where))

    def _coded(self, count: int) -> list[int]:
        if self.values != 2:
            return self._planes(16, count)
        escapes = iter(self._words(11, self.width))
        return [next(escapes) if small == 255 and self.width > 1 else small for small in self.s[10]]

    def _value(self, old: int, coded: int) -> int:
        if self.values < 2:
            return coded if self.values == 0 else old ^ coded
        zigzag = (coded + 1) & self.ones
        d = zigzag >> 1 ^ -(zigzag & 1)
        order = old if not self.float else old ^ self.ones if old & self.sign else old | self.sign
        order = (order + d) & self.ones
        return order if not self.float else order ^ self.sign if order & self.sign else order ^ self.ones

    def _by_class(self, sparse: list[int], old: Words) -> tuple[list[tuple[int, int]], list[int]]:
        numbers = varints(self.s[12])
        total, r, _, classes = islice(numbers, 4)
        firsts: list[int] = []
        rates, tables = [], []
        for _ in range(classes):
            step, rate, pairs = islice(numbers, 3)
            firsts.append(step + (firsts[-1] if firsts else 0))
            rates.append(rate)
            token, table = -1, {}
            for _ in range(pairs):
                token += next(numbers) + 1
                table[token] = next(numbers)
            assert sum(table.values()) == 4096
            tables.append(table)
        mantissa, exponents = (self.float[1], (1 << self.float[0]) - 1) if self.float else (0, 0)
        sequence = [c for c, touched in zip(*self._touched(sparse), strict=True) if touched]
        class_of = [max(k for k in range(classes) if firsts[k] <= old[c] >> mantissa & exponents) for c in sequence]
        code = _Rans(self._words(13, 4), self.steps)
        end, c_of = (28 - r) << r, _axis(r)
        where, coded, w = [], [], 0
        for _ in range(total):
            s, a = 0, 0
            while code.slot(30) >= c_of(end):
                code.leave(c_of(end), (1 << 30) - c_of(end), 30)
                s += end
            while True:
                q = rates[class_of[w]]
                if a + q > s and code.slot(30) < c_of(min(a - s + q, end)):
                    break
                a, w = a + q, w + 1
            code.leave(c_of(a - s), c_of(min(a - s + q, end)) - c_of(a - s), 30)
            where.append(sequence[w])
            coded.append(code.value(tables[class_of[w]]))
            w += 1
        assert code.x == 1 << 32 and not code.words
        return where, coded if self.values == 2 else self._coded(total)

    def _touched(self, sparse: list[int]) -> tuple[list[tuple[int, int]], list[bool]]:
        """The words of the sparse blocks, and whether each is in a touched row."""
        sequence = [c for b in sparse for c in self.blocks[b]]
        if 14 not in self.s:
            return sequence, [True] * len(sequence)
        raw = self.s[14]
        row = next(varints(raw))
        bitmap = raw[(row.bit_length() + 6) // 7 :]
        places = list(dict.fromkeys((b, word // row) for b in sparse for _, word in self.blocks[b]))
        assert len(bitmap) == -(-len(places) // 8)
        bits = {place: bitmap[k // 8] >> k % 8 & 1 == 1 for k, place in enumerate(places)}
        return sequence, [bits[b, word // row] for b in sparse for _, word in self.blocks[b]]

    def _check_digests(self, changed: list[int], old: Words, new: Words) -> None:
        def digest(blocks: list[int], words: Words) -> bytes:
            raw = [words[c].to_bytes(self.width, "little") for b in blocks for c in self.blocks[b]]
            return xxhash.xxh3_128_digest(b"".join(raw))

        assert b"".join(digest([b], new) for b in changed) == self.s.get(7, b"")
        if not self.anchor:
            assert b"".join(digest([b], old) for b in changed) == self.s.get(5, b"")
            quiet = [b for b in range(len(self.blocks)) if b not in changed]
            spans = sorted({self.span_of[b] for b in quiet})
            rest = [digest([b for b in quiet if self.span_of[b] == span], old) for span in spans]
            assert b"".join(rest) == self.s.get(6, b"")


def _axis(r: int):  # type: ignore[no-untyped-def]
    """C(x)."""
    roots, root = [], 1 << 95
    for _ in range(r):
        root = math.isqrt(root << 96)
        roots.append(root)
    powers = [1 << 96]
    for root in reversed(roots):
        powers += [p * root >> 96 for p in powers]
    e = [p >> 66 for p in powers]
    return lambda x: (1 << 30) - (e[x % (1 << r)] >> (x >> r))


class _Rans:
    def __init__(self, words: list[int], steps: list[Step] | None) -> None:
        self.steps = steps
        self.x, self.words = words[0] << 32 | words[1], words[2:]
        assert self.x >= 1 << 32

    def slot(self, b: int) -> int:
        return self.x % (1 << b)

    def leave(self, start: int, size: int, b: int) -> None:
        if self.steps is not None:
            self.steps.append((self.x, b, self.slot(b), start, size))
        self.x = size * (self.x >> b) + self.slot(b) - start
        if self.x < 1 << 32:
            self.x = self.x << 32 | self.words.pop(0)

    def value(self, table: dict[int, int]) -> int:
        starts = {token: sum(f for t, f in table.items() if t < token) for token in table}
        token = max(t for t in table if starts[t] <= self.slot(12))
        self.leave(starts[token], table[token], 12)
        if token < 16:
            return token
        v, n = 2 + (token - 16) % 2, 3 + (token - 16) // 2
        while n:
            b = min(n, 16)
            piece = self.slot(b)
            self.leave(piece, 1, b)
            v, n = v << b | piece, n - b
        return v
