"""JSON both ways for frozen dataclasses, strict on the way in.

What comes from a store is hostile until checked, so decoding refuses unknown and missing keys and wrong types,
naming the path; it never evaluates anything. Canonical text (sorted keys, no spaces) is what gets digested.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from functools import cache
from typing import Any, TypeVar

from .errors import CorruptInput

T = TypeVar("T")
MAX_JSON = 256 << 20
MAX_INT = 1 << 63  # every number of ours is a signed 64-bit one: arithmetic on it cannot surprise
MAX_DEPTH = 16  # of what is plain JSON to us; everything else is as deep as its type
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
        Not JSON, too large, a key twice, a number that is none, or not the shape of ``cls``; the message names
        ``what`` and the path inside it.
    """
    if len(data) > MAX_JSON:
        raise CorruptInput(what, found=f"{len(data)} bytes of JSON", expected=f"at most {MAX_JSON}")
    try:
        plain = _DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise CorruptInput(what, found=f"no valid JSON ({str(error)[:200]})", expected=_name(cls)) from None
    return from_plain(cls, plain, what)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless a key is there twice: two readers could take different ones."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key twice")
    return out


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is infinite or none")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_number, parse_constant=_number)


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
    if cls is Any:
        _check_plain(plain, what, MAX_DEPTH)
        return plain
    if type(plain) is int and not -MAX_INT <= plain < MAX_INT:
        raise CorruptInput(what, found=f"a number of {plain.bit_length()} bits", expected="a signed 64-bit one")
    if cls is float and type(plain) is int:
        return float(plain)
    if type(plain) is not cls:
        raise _wrong(what, plain, _name(cls))
    return plain


def _check_plain(plain: Any, what: str, room: int) -> None:
    """Refuse plain JSON that is nested deeply, or has a number that only Python would hold."""
    if isinstance(plain, (list, dict)):
        if not room:
            raise CorruptInput(what, found="deeply nested values", expected=f"at most {MAX_DEPTH} levels")
        for inner in plain.values() if isinstance(plain, dict) else plain:
            _check_plain(inner, what, room - 1)
    elif type(plain) is int:
        from_plain(int, plain, what)


def _dataclass(cls: Any, plain: Any, what: str) -> Any:
    if not isinstance(plain, dict):
        raise _wrong(what, plain, f"an object ({cls.__name__})")
    hints, required = _fields(cls)
    if "format" in hints and plain.get("format", FORMAT) != FORMAT:  # before its keys: a later format may have others
        raise CorruptInput(
            f"{what} ({cls.__name__})",
            found=f"format {_short(plain['format'])}",
            expected=f"format {FORMAT}",
            remedy="update dcr-mpi at this site to the writer's version",
        )
    unknown = sorted(set(plain) - set(hints))
    missing = sorted(required - set(plain))
    if unknown or missing:
        raise CorruptInput(
            f"{what} ({cls.__name__})",
            found=f"unknown keys {[key[:40] for key in unknown[:5]]}, missing {missing[:5]}",
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


def _name(cls: Any) -> str:
    return getattr(cls, "__name__", str(cls))


def _short(plain: Any) -> str:
    """A value for a message, which must not grow with it."""
    if isinstance(plain, (list, dict)):
        return f"{type(plain).__name__} of {len(plain)}"
    if type(plain) is int and plain.bit_length() > 64:
        return f"a number of {plain.bit_length()} bits"
    return f"{type(plain).__name__} {plain[:60] if isinstance(plain, str) else plain!r}"


def _wrong(what: str, plain: Any, expected: str) -> CorruptInput:
    return CorruptInput(what, found=_short(plain), expected=expected)
