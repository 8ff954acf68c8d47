"""Every name of every dataset. Objects are told apart by their address in the file, so a tie is one object with
several names, and a group that contains itself ends the walk."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar

from h5py import h5d, h5f, h5g, h5l, h5o

from ..errors import GeometryError
from .access import h5_error

T = TypeVar("T")
_MAX_GROUP_NAMES = 1000


def walk(file: h5f.FileID, what: str, describe: Callable[[h5d.DatasetID, str], T]) -> list[tuple[T, tuple[str, ...]]]:
    """``describe(dataset, a name)`` of each dataset, with all its names, sorted: hard links and soft links alike.

    Raises
    ------
    GeometryError
        A link that leaves the file, leads nowhere or to itself; a name that is not UTF-8; groups linked to each other
        in so many ways that one of them has over a thousand names.
    """
    root = h5g.open(file, b"/")
    found: dict[int, tuple[T, list[str]]] = {}
    entered: Counter[int] = Counter()
    groups = deque([(root, "", frozenset({h5o.get_info(root).addr}))])
    soft: deque[tuple[h5g.GroupID, bytes, str, frozenset[int]]] = deque()

    def arrive(group: h5g.GroupID, link: bytes, path: str, above: frozenset[int], hard: bool) -> None:
        try:
            target = h5o.open(group, link)
        except (OSError, RuntimeError, KeyError) as error:
            if hard:
                raise h5_error(error, f"{what}, {path[:200]!r}") from error
            raise
        address = h5o.get_info(target).addr
        if isinstance(target, h5d.DatasetID):
            if address not in found:
                found[address] = describe(target, path), []
            found[address][1].append(path)
        elif isinstance(target, h5g.GroupID) and address not in above:  # else a cycle, or a committed datatype
            entered[address] += 1
            if entered[address] > _MAX_GROUP_NAMES:
                raise GeometryError(
                    f"{what}, group {path[:200]!r}",
                    found=f"over {_MAX_GROUP_NAMES} names for one group",
                    expected="few links between groups",
                    remedy="link datasets, not groups",
                )
            groups.append((target, path, above | {address}))

    # Hard links first, all of them: once no external link was among them, a soft link cannot lead out of the file.
    while groups or soft:
        if groups:
            group, prefix, above = groups.popleft()
            for link, kind in _links(group):
                path = f"{prefix}/{_text(link, what)}" if prefix else _text(link, what)
                if kind == h5l.TYPE_HARD:
                    arrive(group, link, path, above, hard=True)
                elif kind == h5l.TYPE_SOFT:
                    soft.append((group, link, path, above))
                else:
                    raise _leads(
                        what, path, group, link, "out of the file", "copy the data into this shard, or remove the link"
                    )
        else:
            group, link, path, above = soft.popleft()
            try:
                arrive(group, link, path, above, hard=False)
            except KeyError:
                raise _leads(what, path, group, link, "nowhere", "remove it, or write what it should lead to") from None
            except RuntimeError:
                raise _leads(what, path, group, link, "to itself (or through a very long chain)", "remove it") from None
    return sorted(((record, tuple(sorted(names))) for record, names in found.values()), key=lambda pair: pair[1])


def _links(group: h5g.GroupID) -> list[tuple[bytes, int]]:
    links: list[tuple[bytes, int]] = []
    group.links.iterate(lambda name, info: links.append((name, info.type)), info=True)
    return links


def _text(link: bytes, what: str) -> str:
    try:
        return link.decode()
    except UnicodeDecodeError:
        raise GeometryError(what, found=f"link name {link[:200]!r}", expected="UTF-8", remedy="rename it") from None


def _leads(what: str, path: str, group: h5g.GroupID, link: bytes, where: str, remedy: str) -> GeometryError:
    try:
        value = group.links.get_val(link)
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
    except (RuntimeError, ValueError, TypeError):
        value = "a user-defined link"
    return GeometryError(f"{what}, link {path[:200]!r}", found=f"{str(value)[:200]}, which leads {where}",
                         expected="links to datasets and groups of the same file", remedy=remedy)  # fmt: skip
