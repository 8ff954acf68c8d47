"""Bytes of a version before there is one: the codec's streams, each taken for as long as its entropy stage makes it.

*class* is coded by rANS, which comes within a fraction of a percent of its model's entropy; beside it are tables and
digests. *plain* is bytes through zstd, which has no such formula: gaps and steps are drawn from the law and go
through the codec's own entropy stage. *dense* is whole words: mantissa and sign do not shrink, exponents do. See
docs/format.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from ..digest import BLOCK_DIGEST_BYTES
from ..wire import packed_size
from .law import Changes

Positions = Literal["class", "plain", "dense"]
POSITIONS: tuple[Positions, ...] = ("class", "plain", "dense")
_ESCAPE = 255  # gaps from it on take four bytes more
_DIRECT = 16  # value tokens below it are the value itself, then there are two per doubling
_CLASS_BITS, _TOKEN_BITS = 40, 14  # of a class, and of a token in its table
_HEADS = 180  # bytes of a bucket: its header, its streams' headers, its spans
_PART_HEAD = 68
_DRAWN, _LEVEL = 1 << 19, 1  # changes; of zstd, as is the default


@dataclass(frozen=True)
class Share:
    """Some words of the model: a law for their dtype, and how many there are."""

    law: Changes
    words: float

    @property
    def dense_bytes(self) -> float:
        return self.words * self.law.kind.word_bytes

    @property
    def changed(self) -> float:
        return self.words * self.law.fraction


def payload(shares: Sequence[Share], positions: Positions, part: float, bucket: float, block: int) -> float:
    """Bytes of all parts of a version.

    Parameters
    ----------
    part, bucket : float
        Dense bytes of a part and of a bucket at most.
    block : int
        Words of a block.
    """
    total = sum(_words(share, positions, min(bucket, part), block) for share in shares)
    return total + _PART_HEAD * math.ceil(sum(s.dense_bytes for s in shares) / part)


def bits_per_change(share: Share, positions: Positions, bucket: float = 32 << 20, block: int = 1 << 18) -> float:
    """The same per changed word, part headers left out; comparable with the tables in docs/benchmarks.md."""
    return 8 * _words(share, positions, bucket, block) / share.changed


def _words(share: Share, positions: Positions, bucket: float, block: int) -> float:
    law, blocks = share.law, share.words / block
    changed_blocks = blocks * -math.expm1(block * math.log1p(-law.fraction))
    buckets = max(1.0, share.dense_bytes / bucket)
    side = changed_blocks * 2 * BLOCK_DIGEST_BYTES + buckets * (_HEADS + BLOCK_DIGEST_BYTES)
    dense = changed_blocks * block * _dense_bits(law) / 8
    if positions == "dense":
        return side + dense
    if positions == "plain":
        bits = share.changed * _plain_bits(law)
    else:
        bits = share.changed * law.class_bits + buckets * _table_bits(law, share.changed / buckets)
    return side + min(bits / 8, dense)  # a block that is smaller whole travels whole


def _dense_bits(law: Changes) -> float:
    """Of a whole word, as byte planes with the exponent in one of its own."""
    if not law.kind.is_float:
        return 8.0 * law.kind.word_bytes
    return law.kind.mantissa + 1 + law.exponent_bits


def _table_bits(law: Changes, changed: float) -> float:
    """Rates and token tables of a bucket's classes: exponents and steps of which there is one or more."""
    each = changed * law.share * law.moved / law.fraction
    counts = each[:, None] * law.steps / 2 >= 0.5  # of a step up or down, twice each
    used = 2 * counts[:, : _DIRECT // 2].sum(axis=1)
    furthest = counts.shape[1] - np.argmax(counts[:, ::-1], axis=1)
    octaves = np.where(counts.any(axis=1), np.log2(np.maximum(2.0 * furthest / _DIRECT, 1.0)), 0.0)
    classes = each >= 1
    return float((classes * (_CLASS_BITS + _TOKEN_BITS * (used + 2 * octaves))).sum())


@lru_cache(maxsize=256)
def _plain_bits(law: Changes) -> float:
    """Gap bytes and step bytes of drawn changes, through the codec's own entropy stage."""
    draw, size, total = np.random.default_rng(0), 0, 0
    shares = law.step_shares
    word = np.dtype(f"<u{law.kind.word_bytes}")
    for fraction in law.by_spread.tolist():
        count = max(1, round(_DRAWN * fraction / float(law.by_spread.sum())))
        gaps = draw.geometric(fraction, count) - 1
        steps = 2 * draw.choice(len(shares), count, p=shares / shares.sum()) + draw.integers(0, 2, count)
        streams = {0: np.minimum(gaps, _ESCAPE), 1: np.minimum(steps, _ESCAPE)}
        raw = {k: bytes(v.astype(np.uint8)) for k, v in streams.items()}
        raw[2] = bytes(gaps[gaps >= _ESCAPE].astype("<u4"))
        raw[3] = bytes(steps[steps >= _ESCAPE].astype(word)) if word.itemsize > 1 else b""
        size, total = size + packed_size(raw, _LEVEL), total + count
    # All further steps were drawn as one, of which zstd makes nothing; how far they are is as good as random.
    beyond = float((law.weight * law.far * law.far_bits).sum())
    return 8 * size / total + beyond
