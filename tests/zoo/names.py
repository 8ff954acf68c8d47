"""Files with every sort of link and name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py

from dcr_mpi.errors import GeometryError

from .words import KINDS, ZOO, Refusal, Want, ZooCase, case, noise, put

F32 = KINDS["f32"]
DATA = noise(16, 21)


def _linked(link: Callable[[h5py.File], None], path: str, *names: str) -> Callable[[Path], ZooCase]:
    """A dataset ``model/head/w`` and what ``link`` adds; it must be listed once, as ``path``, also named ``names``."""

    def build(where: Path) -> ZooCase:
        with h5py.File(where, "w") as file:
            put(file, "model/head/w", F32, (4,), DATA)
            link(file)
        return ZooCase(where, (Want(path, "f32", (4,), DATA, names=names),))

    return build


def _refused(link: Callable[[h5py.File], None], *words: str) -> Callable[[Path], ZooCase]:
    def build(where: Path) -> ZooCase:
        with h5py.File(where, "w") as file:
            put(file, "model/head/w", F32, (4,), DATA)
            link(file)
        return ZooCase(where, refused=Refusal(GeometryError, words))

    return build


def _hard(name: str, target: str) -> Callable[[h5py.File], None]:
    def link(file: h5py.File) -> None:
        file[name] = file[target]

    return link


def _soft(name: str, target: str) -> Callable[[h5py.File], None]:
    def link(file: h5py.File) -> None:
        file[name] = h5py.SoftLink(target)

    return link


def _all(*links: Callable[[h5py.File], None]) -> Callable[[h5py.File], None]:
    def link(file: h5py.File) -> None:
        for one in links:
            one(file)

    return link


def _external(file: h5py.File) -> None:
    file["model/outside"] = h5py.ExternalLink("other.h5", "/w")


def _lattice(file: h5py.File) -> None:
    """2^24 names for one group, in 49 links."""
    group = file.create_group("lattice")
    for _ in range(24):
        below = group.create_group("a")
        group["b"] = below
        group = below


def _bytes_name(file: h5py.File) -> None:
    file.id.links.create_hard(b"caf\xe9", file.id, b"model/head/w")


ZOO.update(
    {
        "tie_hard_link": _linked(_hard("model/embed/w", "model/head/w"), "model/embed/w", "model/head/w"),
        "tie_three_names": _linked(
            _all(_hard("z", "model/head/w"), _hard("model/head/v", "z")), "model/head/v", "model/head/w", "z"
        ),
        "tie_of_groups": _linked(_hard("model/embed", "model/head"), "model/embed/w", "model/head/w"),
        "soft_link": _linked(_soft("a", "/model/head/w"), "a", "model/head/w"),
        "soft_link_relative": _linked(_soft("model/w", "head/w"), "model/head/w", "model/w"),
        "soft_link_to_soft_link": _linked(_all(_soft("b", "a"), _soft("a", "model/head/w")), "a", "b", "model/head/w"),
        "soft_link_to_group": _linked(_soft("alias", "/model"), "alias/head/w", "model/head/w"),
        "soft_link_to_parent": _linked(_soft("model/head/up", "/model"), "model/head/w"),
        "soft_link_to_empty_group": _linked(_all(lambda f: f.create_group("e"), _soft("x", "e")), "model/head/w"),
        "group_cycle": _linked(_hard("model/head/loop", "model"), "model/head/w"),
        "root_cycle": _linked(_hard("model/root", "/"), "model/head/w"),
        "soft_link_dangling": _refused(
            _soft("model/nowhere", "/not/there"), "'model/nowhere'", "/not/there", "nowhere"
        ),
        "soft_link_cycle": _refused(_all(_soft("p", "/q"), _soft("q", "/p")), "link 'p'", "/q", "to itself"),
        "external_link": _refused(_external, "'model/outside'", "other.h5", "out of the file"),
        "external_link_behind_soft_link": _refused(
            _all(_soft("a", "/model/outside"), _external), "'model/outside'", "out of the file"
        ),
        "group_lattice": _refused(_lattice, "over 1000 names", "lattice/"),
        "name_not_utf8": _refused(_bytes_name, "caf", "UTF-8"),
    }
)


@case
def tie_by_equal_copies(path: Path) -> ZooCase:
    """Two storages with equal bytes are two datasets: whoever changes one need not change the other."""
    with h5py.File(path, "w") as file:
        put(file, "embed", F32, (4,), DATA)
        put(file, "head", F32, (4,), DATA)
    return ZooCase(path, (Want("embed", "f32", (4,), DATA), Want("head", "f32", (4,), DATA)))


@case
def names_odd(path: Path) -> ZooCase:
    """The library reads ``//`` as ``/``; all else is a name like any other."""
    names = (
        "double//slash",
        "unicode/ěščř-重み-🙂",
        "new\nline",
        "x" * 3000,
        "/".join(["deep"] * 600),
        "..",
        "a b\t%s{}*?[1]",
        "CON",
        "-rf",
    )
    listed = sorted(n.replace("//", "/") for n in names)
    with h5py.File(path, "w") as file:
        for name in names:
            put(file, name, F32, (4,), DATA)
    return ZooCase(path, tuple(Want(n, "f32", (4,), DATA) for n in listed))


@case
def names_sorted_by_code_point(path: Path) -> ZooCase:
    """``layers.10`` before ``layers.2``, capitals first, whatever the order of writing."""
    names = ("layers.2/w", "layers.10/w", "Z", "a", "é", "z")
    with h5py.File(path, "w", track_order=True) as file:
        for name in reversed(names):
            put(file, name, F32, (4,), DATA)
    return ZooCase(path, tuple(Want(n, "f32", (4,), DATA) for n in sorted(names)))
