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
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from .errors import CorruptInput

T = TypeVar("T")
MAX_JSON = 256 << 20
MAX_INT = 1 << 63  # every number of ours is a signed 64-bit one: arithmetic on it cannot surprise
MAX_DEPTH = 16  # of what is plain JSON to us; everything else is as deep as its type
FORMAT = 1  # of every object that has a ``format``
_SCALARS = frozenset((str, int, bool, float, type(None)))


def to_plain(value: Any) -> Any:
    """Dataclasses to dicts, tuples to lists; everything else must be plain JSON already."""
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    if (names := _names(kind)) is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
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
    try:
        return _reader(cls)(plain)
    except _Odd:
        return _named(cls, plain, what)  # once more, with the path of what is wrong


class _Odd(Exception):
    """Something is not as its type says."""


@cache
def _reader(cls: Any) -> Callable[[Any], Any]:
    """What builds a ``cls``, or raises _Odd: :func:`_named` without a path, which takes most of the time."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in args if a is not type(None)]
        some = _reader(inner)
        return (lambda plain: None if plain is None else some(plain)) if type(None) in args else some
    if origin is tuple:
        item = _reader(args[0])
        return lambda plain: tuple([item(each) for each in plain]) if isinstance(plain, list) else _odd()
    if dataclasses.is_dataclass(cls):
        return _dataclass_reader(cls)
    if cls not in (str, int, bool):
        return partial(_other, cls)

    def scalar(plain: Any) -> Any:
        if type(plain) is not cls or (cls is int and not -MAX_INT <= plain < MAX_INT):
            _odd()
        return plain

    return scalar


def _dataclass_reader(cls: Any) -> Callable[[Any], Any]:
    hints, required = _fields(cls)
    readers = {name: _reader(hint) for name, hint in hints.items()}

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict) or not required <= plain.keys() or plain.get("format", FORMAT) != FORMAT:
            _odd()
        try:
            return cls(**{name: readers[name](item) for name, item in plain.items()})
        except KeyError:  # an unknown one
            return _odd()

    return read


def _other(cls: Any, plain: Any) -> Any:
    try:
        return _named(cls, plain, "")
    except CorruptInput:
        return _odd()


def _odd() -> typing.NoReturn:
    raise _Odd


def _named(cls: Any, plain: Any, what: str) -> Any:
    """The same, naming what is wrong; raises CorruptInput."""
    origin, args = typing.get_origin(cls), typing.get_args(cls)
    if origin in (typing.Union, types.UnionType):
        if plain is None and type(None) in args:
            return None
        (inner,) = [a for a in args if a is not type(None)]
        return _named(inner, plain, what)
    if origin is tuple:
        if not isinstance(plain, list):
            raise _wrong(what, plain, "a list")
        return tuple(_named(args[0], item, f"{what}[{i}]") for i, item in enumerate(plain))
    if origin is dict:
        if not isinstance(plain, dict):
            raise _wrong(what, plain, "an object")
        return {key: _named(args[1], item, f"{what}.{key[:80]}") for key, item in plain.items()}
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
        _named(int, plain, what)


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
    return cls(**{name: _named(hints[name], item, f"{what}.{name}") for name, item in plain.items()})


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other type."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


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
