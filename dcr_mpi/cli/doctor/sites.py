"""What the configuration names on this machine: directories, keys, and the shards of the checkpoints at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...acts.baseline import BaselineRecord
from ...acts.replica import Replica
from ...catalog import Catalog
from ...config import Config
from ...errors import DcrError
from ...hdf5 import checkpoint_inventory, library
from ...signing import ENVIRONMENT, NO_KEYS, load_keyring
from ...store import open_store
from .finding import Finding, guarded, ok
from .places import Place, place
from .remote import quick

_JOURNALS = 0.1  # of a replica: room for the journals of a version that changes 5 %, twice


def filters() -> Iterator[Finding]:
    """What HDF5 can read here."""
    yield ok("hdf5", library())


def directories(config: Config) -> list[tuple[str, Path]]:
    """Directories that an act writes to, by key."""
    found = [(f"sites.{name}.replica", site.replica) for name, site in sorted(config.sites.items())]
    if config.trainer.sites or config.trainer.state.exists():
        found.append(("trainer.state", config.trainer.state))
    return found + ([("events.dir", config.events.dir)] if config.events.dir is not None else [])


def look(config: Config | None, checkpoints: Sequence[Path], hosts: int, first: bool) -> Iterator[Finding]:
    """All of it; keys by rank 0 alone, which alone reads them."""
    dtypes = config.trainer.dtypes if config is not None else {}
    if config is not None:
        if first:
            yield from guarded("keys", lambda: _keys(config))
        dense = _dense_bytes(config)
        for key, path in directories(config):
            need = _need(path, dense) if key.startswith("sites.") else None
            yield from guarded(key, lambda key=key, path=path, need=need: place(Place(key, path, need), hosts))  # type: ignore[misc]
        yield from guarded("shards", lambda: _on_record(config))
    for directory in checkpoints:
        yield from guarded("shards", lambda directory=directory: shards("checkpoint", directory, dtypes))  # type: ignore[misc]


def shards(what: str, directory: Path, dtypes: Mapping[str, str]) -> Iterator[Finding]:
    """Look into every shard of a directory, without reading its words.

    Raises
    ------
    NotReady, CorruptInput, GeometryError
        No such directory or no shards; one that is not whole; a filter that is not installed.
    """
    found = checkpoint_inventory(directory, dtypes=dtypes)
    used = sorted({name for shard in found for dataset in shard.datasets for name in dataset.filters})
    yield ok("shards", f"{what} {directory}: {len(found)} readable; filters: {', '.join(used) or 'none'}")


def _on_record(config: Config) -> Iterator[Finding]:
    record = BaselineRecord(config.trainer.state)
    for what, source in (("baseline", record.baseline()), ("sealed version", record.pending())):
        if source is not None:
            yield from shards(what, Path(source.directory), config.trainer.dtypes)
    for name, site in sorted(config.sites.items()):
        if Replica(site.replica, name).record() is not None:
            yield from shards(f"replica of {name}", site.replica, {})


def _keys(config: Config) -> Iterator[Finding]:
    keyring = load_keyring(config.keys.file, config.keys.trust)
    if keyring is NO_KEYS:
        yield ok("keys", "none configured: objects of the store are not signed")
    else:
        yield ok("keys", f"from {config.keys.file or ENVIRONMENT}, trust {config.keys.trust or 'by the shared key'}")


def _need(path: Path, dense: int | None) -> int | None:
    """Bytes of free space that a replica wants: for itself, or for the journals of a version."""
    if (path / ".dcr/replica.json").exists():
        return int(_JOURNALS * sum(p.stat().st_size for p in path.glob("*.h5")))
    return dense


def _dense_bytes(config: Config) -> int | None:
    """Of the newest committed version; None where the store does not tell (which its own check does)."""
    try:
        keys = load_keyring(config.keys.file, config.keys.trust)
        catalog = Catalog(open_store(config.store.url, quick(config.store.s3)), config.policy, keys)
        return catalog.last_committed(catalog.last_opened())[0].dense_bytes
    except DcrError:
        return None
