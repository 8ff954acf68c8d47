"""Configuration: one YAML file, one schema (schema/config.schema.yaml), frozen dataclasses out.

Values are literal: neither environment variables nor ``~`` are expanded, and no key holds a secret. A relative path
is relative to the file's directory, in overrides too.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal

from .dtypes import dtype
from .errors import GeometryError, UsageError, from_os_error
from .schema import fill, schema, validate
from .store.options import S3Options
from .yamltext import parse

_HOST = re.compile(r"[0-9A-Za-z._:%-]{1,255}")
_KEY = re.compile(r"[0-9A-Fa-f]{32,}|[0-9A-Za-z+/]{40,}={1,2}|(ed25519|hmac)[a-z0-9-]* .*|.*PRIVATE KEY.*")


@dataclass(frozen=True)
class StoreConfig:
    """``url`` is absolute where it is a path."""

    url: str
    s3: S3Options


@dataclass(frozen=True)
class KeysConfig:
    """Where keys are; see :mod:`dcr_mpi.signing`."""

    file: Path | None
    trust: Path | None


@dataclass(frozen=True)
class TrainerConfig:
    """The publishing side."""

    layout: Path | None
    state: Path
    sites: tuple[str, ...]
    step_attribute: str
    dtypes: dict[str, str]
    anchor_every: int


@dataclass(frozen=True)
class SiteConfig:
    """A rollout site; ``layout`` None is the trainer's own."""

    replica: Path
    layout: Path | None


@dataclass(frozen=True)
class CodecConfig:
    """How a version is coded; ``block`` in elements."""

    positions: Literal["auto", "class", "plain", "dense"]
    link_mib_s: float | None
    values: Literal["ulp", "xor", "overwrite", "mixed"]
    entropy: Literal["zstd", "none"]
    level: int
    block: int
    bucket_mib: float
    part_mib: float
    self_check: bool


@dataclass(frozen=True)
class RelayConfig:
    """The relay: how parts come to a site, and the tree inside it."""

    transport: Literal["store", "direct"]
    degree: int
    window: int
    chunk_mib: float
    timeout_s: float
    patience_s: float


@dataclass(frozen=True)
class DirectConfig:
    """The direct relay; ``listen`` and what follows at the trainer, from ``connect_timeout_s`` on at sites."""

    store: Literal["also", "after", "never"]
    listen: str
    advertise: str | None
    ports: tuple[int, ...] | None
    hold_mib: float
    spool: Path | None
    connections: int
    connect_timeout_s: float
    idle_s: float
    retry_s: float
    deadline_s: float
    serve_s: float


@dataclass(frozen=True)
class CommitConfig:
    """The decision; ``poll_s`` is the first and the longest pause."""

    wait_s: float
    on_timeout: Literal["wait", "abort"]
    poll_s: tuple[float, ...]


@dataclass(frozen=True)
class RetentionConfig:
    """What dcr gc keeps; ``lease_s`` in seconds."""

    anchors: int
    lease_s: float


@dataclass(frozen=True)
class ApplyConfig:
    """The write into the replica."""

    verify: Literal["touched", "full"]


@dataclass(frozen=True)
class EventsConfig:
    """Logs and progress."""

    dir: Path | None
    progress_s: float


@dataclass(frozen=True)
class Config:
    """Everything that can be configured; every key's meaning is in configs/README.md."""

    policy: str
    store: StoreConfig
    keys: KeysConfig
    trainer: TrainerConfig
    sites: dict[str, SiteConfig]
    codec: CodecConfig
    relay: RelayConfig
    direct: DirectConfig
    commit: CommitConfig
    apply: ApplyConfig
    retention: RetentionConfig
    device: Literal["auto", "cpu", "cuda"]
    kernels: Literal["numba", "numpy"]
    ranks: int | None
    events: EventsConfig


def load(path: Path | None, overrides: Mapping[str, str] = {}) -> Config:
    """Read a configuration.

    Parameters
    ----------
    path : Path, optional
        The YAML file; None starts from nothing (then ``overrides`` give every required key).
    overrides : Mapping
        Dotted key to value as YAML text, as in ``{"codec.level": "3", "trainer.sites": "[a, b]"}``.

    Raises
    ------
    UsageError
        No such file, no YAML, an unknown or missing key, a value that is not allowed: names the key, what was
        found and what is expected.
    """
    where = str(path) if path is not None else "configuration"
    plain = _read(path) if path is not None else {}
    for key, text in overrides.items():
        _override(plain, key, parse(text, f"value of {key}"))
    plain = fill(schema(), plain)
    validate(plain, where)
    for name, text in plain["keys"].items():
        _no_key(text, f"keys.{name}", where)
    base = path.resolve().parent if path is not None else Path.cwd()
    store = plain["store"]
    if "://" not in store["url"]:
        store["url"] = str(_path(store["url"], base, "store.url", where))
    if store["s3"]["ca_bundle"] is not None:
        store["s3"]["ca_bundle"] = str(_path(store["s3"]["ca_bundle"], base, "store.s3.ca_bundle", where))
    config: Config = _build(Config, plain, base, "", where)
    _check(config, where)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"configuration {path}", found="no such file", expected="a YAML file",
                         remedy="copy configs/example.yaml, or name the file with --config") from None  # fmt: skip
    except IsADirectoryError:
        raise UsageError(f"configuration {path}", found="a directory", expected="a YAML file") from None
    except OSError as error:
        raise from_os_error(error, f"configuration {path}") from error
    plain = parse(text, str(path))
    if not isinstance(plain, dict):
        raise UsageError(f"configuration {path}", found="an empty file" if plain is None else type(plain).__name__,
                         expected="keys and values", remedy="configs/example.yaml is one")  # fmt: skip
    return plain


def _override(plain: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key. Names that hold dots are out of its reach: override the section around them."""
    *sections, leaf = key.split(".")
    for depth, name in enumerate(sections):
        inner = plain.setdefault(name, {})
        if not isinstance(inner, dict):
            section = ".".join(sections[: depth + 1])
            raise UsageError(f"override of {key}", found=f"{section} is no section", expected="a key inside a section")
        plain = inner
    plain[leaf] = value


def _build(kind: Any, plain: Any, base: Path, key: str, where: str) -> Any:
    """Validated plain data as ``kind``: a dataclass or a type made of containers, None, Path and scalars."""
    args = typing.get_args(kind)
    if isinstance(kind, UnionType):
        if plain is None:
            return None
        (kind,) = (a for a in args if a is not type(None))
        return _build(kind, plain, base, key, where)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        inside = {n: _build(hints[n], v, base, f"{key}.{n}".lstrip("."), where) for n, v in plain.items()}
        return kind(**inside)  # type: ignore[operator]
    match typing.get_origin(kind):
        case origin if origin is dict:
            return {n: _build(args[1], v, base, f"{key}.{n}", where) for n, v in plain.items()}
        case origin if origin is tuple:
            return tuple(_build(args[0], v, base, f"{key}[{i}]", where) for i, v in enumerate(plain))
    if kind is Path:
        return _path(plain, base, key, where)
    if kind in (int, float):
        if not math.isfinite(plain):
            raise UsageError(f"{where}: key {key}", found=plain, expected="a finite number")
        return kind(plain)  # 3.0 is a whole number to the schema
    return plain


def _path(text: str, base: Path, key: str, where: str) -> Path:
    if text.startswith("~") or "$" in text or "\0" in text:
        raise UsageError(f"{where}: key {key}", found=repr(text), expected="a plain path",
                         remedy="write it out: ~ and variables are not expanded")  # fmt: skip
    return base / text


def _no_key(text: str | None, key: str, where: str) -> None:
    """Refuse what looks like a key where its file's name should be, and do not repeat it."""
    if text is not None and (_KEY.fullmatch(text.strip()) or "\n" in text):
        raise UsageError(f"{where}: key {key}", found="what looks like a key itself", expected="the path of its file",
                         remedy="put it into a file that only its owner can read, or make a new one")  # fmt: skip


def _check(config: Config, where: str) -> None:
    """What a schema cannot say."""
    for pattern, name in config.trainer.dtypes.items():
        try:
            dtype(name)
        except GeometryError as error:
            raise UsageError(
                f"{where}: key trainer.dtypes.{pattern}", found=error.found, expected=error.expected
            ) from None
    if config.codec.block.bit_count() != 1:
        raise UsageError(f"{where}: key codec.block", found=config.codec.block, expected="a power of two")
    first, longest = config.commit.poll_s
    if first > longest:
        raise UsageError(f"{where}: key commit.poll_s", found=[first, longest], expected="the shorter pause first")
    told, ports = config.direct.advertise, config.direct.ports
    if told is not None and not _HOST.fullmatch(told.replace("{host}", "host")):
        raise UsageError(f"{where}: key direct.advertise", found=repr(told), expected="a host's name or address")
    if ports is not None and ports[0] > ports[1]:
        raise UsageError(f"{where}: key direct.ports", found=list(ports), expected="the lower port first")
    owners: dict[Path, str] = {}
    for name, site in config.sites.items():
        other = owners.setdefault(site.replica.resolve(), name)
        if other != name:
            raise UsageError(
                f"{where}: key sites.{name}.replica", found=f"the directory of site {other}", expected="one of its own"
            )
