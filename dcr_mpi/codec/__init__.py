"""The codec: a bucket of spans of one dtype against its baseline, to bytes and back. See docs/format.md."""

from .bucket import Scheme, encode, rest_digests
from .reader import BucketReader, check_spans
from .table import BlockTable, block_table

__all__ = ["BlockTable", "BucketReader", "Scheme", "block_table", "check_spans", "encode", "rest_digests"]
