"""Golden parts of format version 1: written once by hand (``python tests/golden/make.py --write``), checked forever.

Every case is described in ``v1/cases.json``: the words of all spans before, one after another, as
hex text of their little-endian bytes, and the index and word of each that changes: a reader in any language can use
the folder. A case that is written is never changed: a new one is added beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dcr_mpi.codec import BlockTable, Scheme, block_table, encode
from dcr_mpi.dtypes import dtype
from dcr_mpi.kernels import get_kernels
from dcr_mpi.kernels.api import Kernels
from dcr_mpi.layout import Span
from dcr_mpi.wire import PartHeader, pack_part

FOLDER = Path(__file__).parent / "v1"
POLICY, TILING = bytes(range(16)), bytes(range(16, 32))
Case = dict[str, Any]


def words_of(text: str, name: str) -> np.ndarray:
    """Words from the hex text of their little-endian bytes."""
    return np.frombuffer(bytes.fromhex(text), f"<u{dtype(name).word_bytes}")


def table_of(bucket: Case) -> BlockTable:
    return block_table([Span(*span) for span in bucket["spans"]], bucket["block"])


def spread(table: BlockTable, words: np.ndarray) -> np.ndarray:
    """Words of all spans, one after another, as a bucket array (blocks start at multiples of 64 words)."""
    out, at = np.zeros(table.length, words.dtype), 0
    for k in range(len(table)):
        table.view(out, k)[...] = words[at : at + int(table.size[k])]
        at += int(table.size[k])
    return out


def old_and_new(bucket: Case) -> tuple[np.ndarray, np.ndarray]:
    """Both bucket arrays of a description; an anchor's has no changes, so that both are what it carries."""
    old = words_of(bucket["words"], bucket["dtype"])
    new = old.copy()
    for index, word in bucket["changes"]:
        new[index] = words_of(word, bucket["dtype"])[0]
    return spread(table_of(bucket), old), spread(table_of(bucket), new)


def part_of(case: Case, kernels: Kernels) -> bytes:
    """Encode a case as it is described."""
    buckets = []
    for bucket in case["buckets"]:
        name, table = bucket["dtype"], table_of(bucket)
        old, new = old_and_new(bucket)
        base = None if case["base"] is None else old
        changes = None if base is None else kernels.changes(base, new, table.offset, table.size)
        scheme = Scheme(bucket["positions"], bucket["values"], case["zstd"])
        row = bucket.get("row", 0)
        buckets.append(encode(scheme, name, table, bucket["block"], base, new, changes, kernels, row))
    header = PartHeader(POLICY, TILING, case["version"], case["base"], case["index"], len(buckets))
    return pack_part(header, buckets)


# -- the cases, as they were first written --------------------------------------------------------------------

_SPANS = {
    "one": [[3, 0, 70]],
    "many": [[0, 64, 130], [0, 192, 195], [7, 0, 5], [300, 128, 129]],
}
_SPECIAL = {  # old to new, as words: signed zeros, NaN payloads, infinities, denormals, sign crossing, wrap-around
    "bf16": [
        (0x8000, 0x0000),
        (0x7FC1, 0x7F81),
        (0x7F80, 0xFF80),
        (0x0001, 0x8001),
        (0x3F80, 0xBF80),
        (0x7FC0, 0x3F80),
    ],
    "f16": [(0x8000, 0x0000), (0x7E01, 0x7C01), (0x7C00, 0xFC00), (0x0001, 0x8001)],
    "f32": [(0x80000000, 0), (0x7FC00001, 0x7F800001), (0x7F800000, 0xFF800000), (1, 0x80000001)],
    "f64": [(1 << 63, 0), ((0x7FF8 << 48) | 1, (0x7FF0 << 48) | 1), (0x7FF0 << 48, 0xFFF0 << 48), (1, (1 << 63) | 1)],
    "f8e4m3": [(0x80, 0x00), (0x7F, 0xFF), (0x01, 0x81), (0x7E, 0x08)],
    "i64": [(0, 2**64 - 1), (2**63 - 1, 2**63), (2**64 - 1, 0)],
    "u8": [(0, 255), (255, 0), (127, 128)],
    "bool": [(0, 1), (1, 0)],
    "i32": [(0, 2**32 - 1), (2**31 - 1, 2**31)],
    "bf16be": [(0x803F, 0x813F)],
    "raw6": [(0, 0xFFFF), (0x1234, 0x1235)],
    "raw16": [(0, 2**64 - 1)],
}


def _bucket(name: str, spans: list[list[int]], positions: str, values: str, how: str, block: int = 64) -> Case:
    """Words are a plain function of their index: no generator that could change.

    ``how``: "none" or "sparse" changes over noise, or "every" word of a short pattern that zstd can pack.
    """
    bits = 8 * dtype(name).word_bytes
    total, mask = sum(b - a for _, a, b in spans), (1 << bits) - 1
    old = [k % 5 if how == "every" else (0x9E3779B97F4A7C15 * (k + 1) >> 13) & mask for k in range(total)]
    new = dict.fromkeys(range(total) if how == "every" else range(2, total if how == "sparse" else 0, 11), 0)
    for turn, k in enumerate(new):
        step = 1 if how == "every" else (1, -1, 1, 2, -300, 70000)[turn % 6]
        new[k] = (old[k] + step) & mask
    for k, (before, after) in enumerate(_SPECIAL[name] if how == "sparse" else []):
        old[3 + 5 * k], new[3 + 5 * k] = before, after
    changes = [[k, _hex([new[k]], bits)] for k in sorted(new) if new[k] != old[k]]
    named = {"dtype": name, "spans": spans, "block": block, "positions": positions, "values": values}
    return named | {"words": _hex(old, bits), "changes": changes}


def _hex(words: list[int], bits: int) -> str:
    return b"".join(word.to_bytes(bits // 8, "little") for word in words).hex()


def first_cases() -> Iterator[tuple[str, Case]]:
    """Name and description of every case of version 1."""
    delta: Case = {"version": 42, "base": 41, "index": 3, "zstd": None}
    for name in _SPECIAL:
        for values in ("ulp", "xor", "overwrite"):
            spans = _SPANS["many" if values == "ulp" else "one"]
            yield f"{name}-{values}", delta | {"buckets": [_bucket(name, spans, "plain", values, "sparse")]}
    anchor = delta | {"base": None, "version": 40}
    for name in ("bf16", "f32", "i64", "u8"):
        yield f"{name}-dense", delta | {"buckets": [_bucket(name, _SPANS["one"], "dense", "ulp", "sparse")]}
        yield f"{name}-anchor", anchor | {"buckets": [_bucket(name, _SPANS["many"], "plain", "ulp", "none")]}
    yield "mixed-dense-and-plain", delta | {"buckets": [_mixed()]}
    yield "nothing-changed", delta | {"buckets": [_bucket("bf16", _SPANS["many"], "plain", "ulp", "none")]}
    yield "no-buckets", delta | {"buckets": []}
    yield "gap-escapes", delta | {"buckets": [_gaps()]}
    several = [_bucket(n, _SPANS["one"], "plain", "ulp", "sparse") for n in ("bf16", "f32", "bool")]
    yield "several-buckets", delta | {"buckets": several}
    for values in ("ulp", "xor", "overwrite"):
        every = [_bucket(n, _SPANS["one"], "plain", values, "every") for n in ("bf16", "f32", "u8")]
        yield f"{values}-zstd", delta | {"zstd": 1, "buckets": every}
    packed = _bucket("bf16", _SPANS["one"], "dense", "ulp", "every")
    yield "dense-zstd", delta | {"zstd": 3, "buckets": [packed]}
    yield "anchor-zstd", anchor | {"zstd": 3, "buckets": [packed | {"changes": []}]}
    for name in ("bf16", "f32", "f8e4m3", "u8", "raw16"):
        yield f"{name}-class", delta | {"buckets": [_bucket(name, _SPANS["many"], "class", "ulp", "sparse")]}
    yield "bf16-class-xor", delta | {"buckets": [_bucket("bf16", _SPANS["one"], "class", "xor", "sparse")]}
    yield "example", delta | {"buckets": [_example()]}
    for name in ("f16", "f64", "i64", "bool", "bf16be"):
        yield f"{name}-class", delta | {"buckets": [_bucket(name, _SPANS["many"], "class", "ulp", "sparse")]}
    yield "f32-class-overwrite", delta | {"buckets": [_bucket("f32", _SPANS["one"], "class", "overwrite", "sparse")]}
    for values in ("ulp", "xor"):
        yield f"mixed-dense-and-class-{values}", delta | {"buckets": [_mixed_by_class(values)]}
    yield "class-of-several-rates", delta | {"buckets": [_slope()]}
    yield "class-gaps-past-the-axis", delta | {"buckets": [_past_the_axis()]}
    yield "class-in-touched-rows", delta | {"buckets": [_touched_rows()]}
    yield "class-zstd", delta | {"zstd": 1, "buckets": [_slope() | {"values": "xor"}]}
    yield "example-class", delta | {"buckets": [_example() | {"positions": "class"}]}


def _mixed() -> Case:
    """Two blocks: noise over noise, which goes whole, and one change."""
    bucket = _bucket("u8", [[9, 0, 128]], "plain", "overwrite", "none")
    old = bytes.fromhex(bucket["words"])
    return bucket | {"changes": [[k, bytes([old[k] ^ 0xFF]).hex()] for k in (*range(64), 100)]}


def _gaps() -> Case:
    """Gaps on both sides of 255, in blocks of 1024 words."""
    bucket = _bucket("u8", [[1, 0, 2000]], "plain", "ulp", "none", 1024)
    changes, at = [], -1
    for gap in (0, 254, 255, 256, 0, 700):
        at += gap + 1
        changes.append([at, "01"])
    return bucket | {"words": bytes(2000).hex(), "changes": changes}


def _example() -> Case:
    """The worked example of docs/format.md: 24 words, five changes."""
    old = [0x3F80] * 24
    old[4], old[10] = 0x8000, 0xBF80
    new = {0: 0x3F81, 1: 0x3F7F, 4: 0x0000, 10: 0xBF82, 23: 0xBF80}
    bucket = {"dtype": "bf16", "spans": [[3, 64, 88]], "block": 64, "positions": "plain", "values": "ulp"}
    return bucket | {"words": _hex(old, 16), "changes": [[k, _hex([word], 16)] for k, word in new.items()]}


def _mixed_by_class(values: str) -> Case:
    """Three blocks, of which the middle one changed altogether, and an unchanged one."""
    bucket = _bucket("bf16", [[9, 64, 300]], "class", values, "sparse")
    old = words_of(bucket["words"], "bf16").tolist()
    changes = [[k, word] for k, word in bucket["changes"] if k < 64 or 128 <= k < 192]
    changes += [[k, _hex([old[k] * 0x9E37 + 0x79B9 & 0xFFFF], 16)] for k in range(64, 128)]
    return bucket | {"changes": sorted([k, word] for k, word in changes if word != _hex([old[k]], 16))}


def _slope() -> Case:
    """Four blocks of 256 words of eight exponents; an exponent lower, about twice as many of them change."""
    old = [(0x78 + k * 5 % 8) << 7 | k * 37 % 128 for k in range(1024)]
    new = {
        k: word + (1 if k % 3 else -1) for k, word in enumerate(old) if k * 0x9E3779B1 % 2**32 >> 25 < 64 >> k * 5 % 8
    }
    return _of_words([[5, 0, 1024]], 256, old, new)


def _past_the_axis() -> Case:
    """Words of one exponent, of which the first hundred changed, and then no more until the last."""
    old = [0x3F80 + k % 64 for k in range(600)] + [0x4200] * 400
    return _of_words([[5, 0, 1000]], 1024, old, {k: old[k] + 1 for k in (*range(100), 599, 998)})


def _touched_rows() -> Case:
    """Rows of 20 words over blocks of 64, some of them cut by a block's end, every fifth of them touched."""
    old = [0x3F80 + k % 128 for k in range(1000)]
    new = {k: old[k] + 1 for k in range(1000) if k // 20 % 5 == 1 and k % 4 == 0}
    return _of_words([[5, 0, 500], [6, 64, 564]], 64, old, new) | {"row": 20}


def _of_words(spans: list[list[int]], block: int, old: list[int], new: dict[int, int]) -> Case:
    bucket = {"dtype": "bf16", "spans": spans, "block": block, "positions": "class", "values": "ulp"}
    return bucket | {"words": _hex(old, 16), "changes": [[k, _hex([word], 16)] for k, word in new.items()]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the cases that are not there yet")
    parser.add_argument("--force", action="store_true", help="with --write: also replace cases that are there")
    options = parser.parse_args()
    index = FOLDER / "cases.json"
    cases = json.loads(index.read_text()) if index.exists() else {}
    if not options.write:
        print(f"{len(cases)} cases in {FOLDER}; --write adds those that are missing")
        return 0
    added = {name: case for name, case in first_cases() if options.force or name not in cases}
    FOLDER.mkdir(exist_ok=True)
    for name, case in added.items():
        part = FOLDER / f"{name}.part"
        if part.exists() and not options.force:
            print(f"{part} is there without a description: left alone; remove it, or use --force", file=sys.stderr)
            return 1
        part.write_bytes(part_of(case, get_kernels("numpy")))
    index.write_text("{\n" + ",\n".join(f'"{n}": {json.dumps(c)}' for n, c in (cases | added).items()) + "\n}\n")
    print(f"{len(added)} written: {', '.join(added) or 'nothing is missing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
