"""The codec: a bucket of spans of one dtype against its baseline, to bytes and back. See docs/format.md."""

from .bucket import Scheme, ValueChoice, encode
from .compare import Digests, compare, digests_of, lots, rest_digests
from .reader import BucketReader, Cover
from .table import MAX_BLOCKS, BlockTable, block_table

__all__ = [
    "MAX_BLOCKS",
    "BlockTable",
    "BucketReader",
    "Cover",
    "Digests",
    "Scheme",
    "ValueChoice",
    "block_table",
    "compare",
    "digests_of",
    "encode",
    "lots",
    "rest_digests",
]
