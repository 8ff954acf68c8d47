"""What is inside a file of ours: a shard, a part, a journal, or a JSON object of the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from ..codec import BucketReader
from ..dtypes import dtype
from ..errors import CorruptInput, UsageError, from_os_error
from ..hdf5 import inventory
from ..journal import MAGIC as JOURNAL_MAGIC
from ..journal import describe
from ..jsonable import MAX_JSON, to_plain
from ..wire import MAGIC as PART_MAGIC
from ..wire import unpack_part

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZSTD = b"\x28\xb5\x2f\xfd"


def inspect(path: Path) -> dict[str, Any]:
    """Recognise a file by its first bytes and describe it.

    Raises
    ------
    CorruptInput
        It is none of these, or a malformed one.
    UsageError, NotReady
        It is a directory, or not there.
    """
    if path.is_dir():
        some = sorted(p.name for p in path.iterdir() if p.is_file())
        example = f", as in {path / some[0]}" if some else ""
        raise UsageError(
            str(path),
            found="a directory",
            expected="a file",
            remedy=f"name one of the {len(some)} files in it{example}",
        )
    try:
        with path.open("rb") as file:
            magic = file.read(8)
        if magic == _HDF5:
            return {"kind": "shard", **to_plain(inventory(path))}
        if magic == JOURNAL_MAGIC:
            return {"kind": "journal", **describe(path)}
        if magic != PART_MAGIC and path.stat().st_size > MAX_JSON:
            raise _unknown(path, magic)
        raw = path.read_bytes()
    except OSError as error:
        raise from_os_error(error, f"reading {path}") from error
    if magic == PART_MAGIC:
        return {"kind": "part", **_part(raw, str(path))}
    try:
        content, _, line = (_unpacked(raw) if magic[:4] == _ZSTD else raw).partition(b"\n")
        signature = {"signature": json.loads(line)} if line.strip() else {}
        return {"kind": "object", "content": json.loads(content), **signature}
    except (ValueError, RecursionError, zstandard.ZstdError):
        raise _unknown(path, magic) from None


def _unpacked(frame: bytes) -> bytes:
    if zstandard.get_frame_parameters(frame).content_size > MAX_JSON:
        raise ValueError(f"over {MAX_JSON} bytes, or no size")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=MAX_JSON)


def _unknown(path: Path, magic: bytes) -> CorruptInput:
    return CorruptInput(
        str(path),
        found=f"first bytes {magic!r}",
        expected="a shard (HDF5), a part, a journal or a JSON object",
        remedy="if it should be one of ours, it was cut or written over: make it again",
    )


def _part(raw: bytes, what: str) -> dict[str, Any]:
    header, buckets = unpack_part(raw, what)
    rows = []
    for bucket in buckets:
        reader = BucketReader(bucket, anchor=header.base is None)
        table = reader.table
        rows.append(
            {
                "dtype": reader.dtype.name,
                "values": reader.values,
                "block": reader.block,
                "blocks": len(table),
                "changed_blocks": int(reader.changed.sum()),
                "dense_blocks": int(reader.dense.sum()),
                "words": int(table.size.sum()),
                "dense_bytes": int(table.size.sum()) * dtype(reader.dtype.name).word_bytes,
                "spans": [{"tile": s.tile, "start": s.start, "stop": s.stop} for s in table.spans],
                "streams": {str(k): {"bytes": len(v.data), "unpacked": v.length} for k, v in bucket.streams.items()},  # type: ignore[union-attr]
            }
        )
    return {
        "policy": header.policy.hex(),
        "tiling": header.tiling.hex(),
        "version": header.version,
        "base": header.base,
        "index": header.index,
        "bytes": len(raw),
        "buckets": rows,
    }
