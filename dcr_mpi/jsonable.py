"""JSON both ways for frozen dataclasses, strict on the way in.

What comes from a store is hostile until checked, so decoding refuses unknown and missing keys and wrong types,
naming the path; it never evaluates anything. Canonical text (sorted keys, no spaces) is what gets digested.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any, TypeVar

from .errors import CorruptInput

T = TypeVar("T")
MAX_JSON = 256 << 20
FORMAT = 1  # of every object that has a ``format``


def to_plain(value: Any) -> Any:
    """Dataclasses to dicts, tuples to lists; everything else must be plain JSON already."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    return value


def dumps(value: Any) -> bytes:
    """Canonical JSON text of a dataclass or plain value, in UTF-8."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def loads(cls: type[T], data: bytes, what: str) -> T:
    """Decode ``data`` as ``cls``.

    Raises
    ------
    CorruptInput
        Not JSON, too large, or not the shape of ``cls``; the message names ``what`` and the path inside it.
    """
    if len(data) > MAX_JSON:
        raise CorruptInput(what, found=f"{len(data)} bytes of JSON", expected=f"at most {MAX_JSON}")
    try:
        plain = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise CorruptInput(what, found=f"no valid JSON ({error})", expected=cls.__name__) from None
    return from_plain(cls, plain, what)


def from_plain(cls: Any, plain: Any, what: str) -> Any:
    """Build ``cls`` (a dataclass or a type built from ``tuple``, ``dict``, ``|`` and scalars) from plain JSON."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (typing.Union, types.UnionType):
        if plain is None and type(None) in args:
            return None
        (inner,) = [a for a in args if a is not type(None)]
        return from_plain(inner, plain, what)
    if origin is tuple:
        if not isinstance(plain, list):
            raise _wrong(what, plain, "a list")
        return tuple(from_plain(args[0], item, f"{what}[{i}]") for i, item in enumerate(plain))
    if origin is dict:
        if not isinstance(plain, dict):
            raise _wrong(what, plain, "an object")
        return {key: from_plain(args[1], item, f"{what}.{key[:80]}") for key, item in plain.items()}
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls, plain, what)
    if cls is float and type(plain) is int:
        return float(plain)
    if cls is not Any and type(plain) is not cls:
        raise _wrong(what, plain, cls.__name__)
    return plain


def _dataclass(cls: Any, plain: Any, what: str) -> Any:
    if not isinstance(plain, dict):
        raise _wrong(what, plain, f"an object ({cls.__name__})")
    hints, required = _fields(cls)
    if "format" in hints and plain.get("format", FORMAT) != FORMAT:  # before its keys: a later format may have others
        raise CorruptInput(
            f"{what} ({cls.__name__})",
            found=f"format {str(plain['format'])[:20]}",
            expected=f"format {FORMAT}",
            remedy="update dcr-mpi at this site to the writer's version",
        )
    unknown = sorted(set(plain) - set(hints))
    missing = sorted(required - set(plain))
    if unknown or missing:
        raise CorruptInput(
            f"{what} ({cls.__name__})",
            found=f"unknown keys {unknown[:5]}, missing {missing[:5]}",
            expected="exactly the documented keys",
        )
    return cls(**{name: from_plain(hints[name], item, f"{what}.{name}") for name, item in plain.items()})


@cache
def _fields(cls: Any) -> tuple[dict[str, Any], frozenset[str]]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    optional = {
        f.name for f in fields if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
    }
    return {f.name: hints[f.name] for f in fields}, frozenset(hints) - optional


def _wrong(what: str, plain: Any, expected: str) -> CorruptInput:
    return CorruptInput(what, found=f"{type(plain).__name__} {str(plain)[:60]!r}", expected=expected)
