"""Relay trees: who passes a part to whom. Pure; every rank computes the same tree without talking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """One rank's place in the tree of one part; ``parent`` is None at the root."""

    parent: int | None
    children: tuple[int, ...]


def route(rank: int, root: int, members: Sequence[int], degree: int, turn: int) -> Route | None:
    """The place of ``rank`` in the ``degree``-ary tree of the ranks that need a part.

    Parameters
    ----------
    root : int
        The rank that fetches the part; it need not be a member.
    members : sequence of int
        Ranks that own a tile of the part. Nobody else is in the tree: other subtrees are pruned away.
    turn : int
        Rotates the members, so that inner nodes differ from part to part (pass the part's index): by as many as there
        are inner nodes, as those of neighbouring parts would send at the same time (docs/scaling.md), and every
        ``degree`` parts by one more, so that everybody's turn comes.

    Returns
    -------
    Route or None
        None where ``rank`` has no place in it.
    """
    others = sorted(set(members) - {root})
    inner = -(-len(others) // degree)
    shift = (turn % degree * inner + turn // degree) % max(len(others), 1)
    order = [root, *others[shift:], *others[:shift]]
    if rank not in order:
        return None
    at = order.index(rank)
    first = at * degree + 1
    parent = None if at == 0 else order[(at - 1) // degree]
    return Route(parent, tuple(order[first : first + degree]))


def depth(members: int, degree: int) -> int:
    """Hops from the root to the last of ``members`` other ranks."""
    hops, reached, width = 0, 0, 1
    while reached < members:
        width *= degree
        reached += width
        hops += 1
    return hops
