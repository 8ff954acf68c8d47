"""The publisher's own record: which directory holds which version's bits, and how to know that they still do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import durable
from ..catalog import Catalog
from ..errors import CorruptInput, UsageError
from ..jsonable import dumps, loads
from ..layout import is_path


@dataclass(frozen=True)
class Source:
    """A directory that held ``version`` when its shards had this fingerprint (see checkpoint.fingerprint)."""

    policy_sha256: str
    version: int
    state: str
    directory: str
    files: dict[str, tuple[int, ...]]


class BaselineRecord:
    """``baseline.json`` and ``pending.json`` in the publisher's state directory.

    The baseline advances on a commit and on nothing else: encode writes *pending* just before it seals the version;
    whoever looks next asks the store for the decision, and moves pending to baseline, or drops it: after an abort, or
    where another publisher's manifest came first. The record saves time, it is no authority: without it, or with a
    fingerprint that changed, a base is recognised by its state digest.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def settle(self, catalog: Catalog) -> None:
        """Move pending on by the store's decision."""
        pending = self._load("pending.json")
        if pending is None or pending.policy_sha256 != catalog.policy()[1]:
            return
        decision = catalog.decision(pending.version)
        if decision is None:
            return
        if decision.commit:
            found = catalog.manifest(pending.version)
            if found is None:
                return  # a committed version has one: the store shows it late
            if found[0].state == pending.state:
                self._save("baseline.json", pending)
        self.drop_pending()

    def baseline(self) -> Source | None:
        return self._load("baseline.json")

    def pending(self) -> Source | None:
        return self._load("pending.json")

    def set_baseline(self, source: Source) -> None:
        self._save("baseline.json", source)

    def set_pending(self, source: Source) -> None:
        self._save("pending.json", source)

    def drop_pending(self) -> None:
        durable.remove(str(self._directory / "pending.json"))

    def _load(self, name: str) -> Source | None:
        path = self._directory / name
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"publisher's record {path}", found=str(error), expected="a readable file") from None
        source = loads(Source, raw, str(path))
        if not is_path(source.directory):
            raise CorruptInput(
                f"publisher's record {path}",
                found=f"directory {source.directory[:80]!r}",
                expected="a path",
                remedy="remove the record; the base is then named with --base",
            )
        return source

    def _save(self, name: str, source: Source) -> None:
        durable.make_dirs(str(self._directory))
        durable.replace(str(self._directory / name), dumps(source))


def is_sealed(catalog: Catalog, source: Source) -> bool:
    """Whether what stands sealed as a source's version is what the source holds."""
    found = catalog.manifest(source.version)
    return found is not None and found[0].state == source.state
