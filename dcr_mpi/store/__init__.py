"""Store rooms: one contract (:mod:`.api`), a directory and an S3 bucket behind it. boto3 loads only for ``s3://``."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from ..errors import UsageError
from .api import Buffer, Entry, Stat, Store, check_key
from .directory import DirectoryStore
from .options import S3Options

__all__ = ["Buffer", "Entry", "S3Options", "Stat", "Store", "check_key", "open_store"]


def open_store(url: str, options: S3Options | None = None) -> Store:
    """The store at ``url``: ``s3://bucket/prefix``, ``file:///absolute/path``, or a plain path.

    ``options`` matter to S3 alone. Nothing is asked of the store yet.

    Raises
    ------
    UsageError
        A URL of another kind, or without a bucket or path.
    """
    parts = urlsplit(url)
    expected = "s3://bucket/prefix, file:///absolute/path or a path"
    if "://" not in url:
        if not url:
            raise UsageError("store URL", found="an empty text", expected=expected)
        return DirectoryStore(url)
    if "@" in parts.netloc:
        raise UsageError("store URL", found="a user name or password in it", expected=expected,
                         remedy="give credentials by the standard AWS chain")  # fmt: skip
    if parts.query or parts.fragment:
        raise UsageError("store URL", found=repr(url), expected=expected + ", without '?' and '#'")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return DirectoryStore(unquote(parts.path))
    if parts.scheme == "s3" and re.fullmatch(r"[A-Za-z0-9._-]+", parts.netloc):
        from .s3 import S3Store

        return S3Store(parts.netloc, parts.path.strip("/"), options)
    raise UsageError("store URL", found=repr(url), expected=expected)
