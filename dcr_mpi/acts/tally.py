"""Counts for a census: what changed in the words of one dtype, and what each way to code it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import codec
from ..codec import BlockTable, Scheme
from ..codec.classes import field as exponent_field
from ..dtypes import DType
from ..kernels.api import Changes, Kernels

SCHEMES = {
    "auto": Scheme("auto", "ulp"),
    "class + ulp": Scheme("class", "ulp"),
    "plain + ulp": Scheme("plain", "ulp"),
    "plain + xor": Scheme("plain", "xor"),
    "plain + overwrite": Scheme("plain", "overwrite"),
    "dense": Scheme("dense", "ulp"),
}
# Distances 1, 2, 3, 4, and then up to each power of two.
_DISTANCES = np.array([1, 2, 3, 4, *(1 << k for k in range(3, 64)), 2**64 - 1], np.uint64)
_MASKS = 256  # XOR masks below it are counted one by one, larger ones by their highest bit
_MASK_EDGES = np.array([1 << k for k in range(8, 64)], np.uint64)


@dataclass
class Tally:
    """Counts of one dtype over all its tensors.

    ``coded_bytes`` are the dense bytes that went through every scheme, with ``coded_changed`` changes in them, and
    ``payload`` is what came out, by scheme.
    """

    kind: DType
    words: int = 0
    changed: int = 0
    up: int = 0
    coded_bytes: int = 0
    coded_changed: int = 0
    payload: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SCHEMES, 0))

    def __post_init__(self) -> None:
        self._shift, self._mask = exponent_field(self.kind)
        self._words_at, self._changed_at = np.zeros((2, self._mask + 1), np.int64)
        self._distances, self._masks = (
            np.zeros(len(_DISTANCES), np.int64),
            np.zeros(_MASKS + len(_MASK_EDGES), np.int64),
        )

    @property
    def dense_bytes(self) -> int:
        return self.words * self.kind.word_bytes

    def count(self, base: np.ndarray, table: BlockTable, changes: Changes, kernels: Kernels) -> None:
        """Take a bucket in."""
        self.words += int(table.size.sum())
        self.changed += len(changes.positions)
        self._words_at += kernels.exponents(base, table.offset, table.size, self._shift, self._mask, 1)
        exponents = (changes.old.astype(np.uint64) >> np.uint64(self._shift)) & np.uint64(self._mask)
        self._changed_at += np.bincount(exponents.astype(np.int64), minlength=self._mask + 1)
        step = kernels.difference("ulp", changes.old, changes.new, self.kind).astype(np.uint64)
        self.up += int((step & np.uint64(1)).sum())  # zigzag less one: 0 is -1, 1 is +1, 2 is -2, ...
        distance = (step >> np.uint64(1)) + np.uint64(1)
        self._distances += np.bincount(np.searchsorted(_DISTANCES, distance), minlength=len(_DISTANCES))
        masks = (changes.old ^ changes.new).astype(np.uint64)
        bins = np.where(masks < _MASKS, masks, _MASKS - 1 + np.searchsorted(_MASK_EDGES, masks, side="right"))
        self._masks += np.bincount(bins.astype(np.int64), minlength=len(self._masks))

    def code(
        self,
        block: int,
        base: np.ndarray,
        new: np.ndarray,
        table: BlockTable,
        changes: Changes,
        row: int,
        kernels: Kernels,
    ) -> None:
        """Code a bucket by every scheme and keep the sizes."""
        self.coded_bytes += int(table.size.sum()) * self.kind.word_bytes
        self.coded_changed += len(changes.positions)
        digests = codec.digests_of(table, base, new, changes.counts > 0)
        for label, scheme in SCHEMES.items():
            packed = codec.encode(scheme, self.kind.name, table, block, base, new, changes, kernels, row, digests)
            self.payload[label] += len(packed)

    def expected(self, scheme: str) -> float:
        """The payload of everything, in bytes, from that of what was coded: in proportion to its changes."""
        if self.coded_changed:
            return self.payload[scheme] * self.changed / self.coded_changed
        return self.payload[scheme] * self.dense_bytes / max(self.coded_bytes, 1)

    def report(self) -> dict[str, Any]:
        """The counts as a plain dict."""
        return {
            "dtype": self.kind.name,
            "float": self.kind.is_float,
            "words": self.words,
            "changed": self.changed,
            "up": self.up,
            "dense_bytes": self.dense_bytes,
            "coded_bytes": self.coded_bytes,
            "exponents": self._exponents() if self.kind.is_float else [],
            "ulp": [
                {"from": int(low) + 1, "to": int(high), "count": int(n)}
                for low, high, n in zip([0, *_DISTANCES[:-1].tolist()], _DISTANCES, self._distances, strict=True)
                if n
            ],
            "xor": self._common(),
            "schemes": scheme_rows({s: self.expected(s) for s in SCHEMES}, self.changed, self.dense_bytes),
        }

    def _exponents(self) -> list[dict[str, Any]]:
        """Exponent fields in use; ``power`` is that of two for normal numbers."""
        bias = (1 << (self.kind.exponent - 1)) - 1
        used = np.flatnonzero(self._words_at).tolist()
        return [
            {
                "field": e,
                "power": e - bias if 0 < e < self._mask else None,
                "words": int(self._words_at[e]),
                "changed": int(self._changed_at[e]),
            }
            for e in used
        ]

    def _common(self) -> list[dict[str, int]]:
        """Masks, or ranges of them, the most frequent first."""
        order = np.argsort(-self._masks, kind="stable")
        order = order[self._masks[order] > 0]
        low = [m if m < _MASKS else 1 << (m - _MASKS + 8) for m in order.tolist()]
        return [
            {"from": a, "to": a if a < _MASKS else 2 * a - 1, "count": int(n)}
            for a, n in zip(low, self._masks[order], strict=True)
        ]


def scheme_rows(payload: dict[str, float], changed: int, dense_bytes: int) -> list[dict[str, Any]]:
    """Expected payload by scheme: bytes, share of the dense bytes, bits per changed word (None where none changed)."""
    return [
        {
            "scheme": label,
            "bytes": round(size),
            "share": size / dense_bytes if dense_bytes else 0.0,
            "bits_per_change": 8 * size / changed if changed else None,
        }
        for label, size in payload.items()
    ]
