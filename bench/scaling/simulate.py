"""The stream of a refit, event by event (SimPy): encoders, uploads; at every site fetches, relay tree, decoders.

What decides who does what is the project's own: :func:`dcr_mpi.acts.parts.share` deals parts to encoders,
:func:`dcr_mpi.tree.route` makes every part's tree, and ranks work on a window of the parts that they have a place
for, in increasing order, as :mod:`dcr_mpi.acts.relay` does. Time is what is made up: a link serves one transfer after
another at its rate, a send begins once its receiver is ready for it, and a decoder takes its seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from dcr_mpi.acts.parts import share
from dcr_mpi.tree import Route, route

Step = Generator[simpy.Event, Any, None]
Members = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Model:
    """What is simulated; seconds, bytes, and bytes per second.

    ``sizes`` are the parts' bytes; ``members`` tells the ranks of a site that need a part. ``put_s`` and ``get_s``
    are what a part's requests take besides its bytes, ``encode_s`` and ``decode_s`` one core's work on a part.
    """

    sizes: Sequence[int]
    members: Members
    trainer_ranks: int
    site_ranks: int
    sites: int
    degree: int
    window: int
    encode_s: float
    decode_s: float
    link: float
    site_link: float
    cluster_link: float
    cluster_latency: float = 0.0
    put_s: float = 0.0
    get_s: float = 0.0
    uploads: int = 2


@dataclass
class Tally:
    """One rank's bytes, as the relay counts them, and the transfers that it sent."""

    fetched: int = 0
    received: int = 0
    sent: int = 0
    sends: int = 0


@dataclass
class Outcome:
    """``seconds`` until the last part was decoded everywhere; ``tallies[site][rank]``; ``wide`` are the bytes that
    crossed into each site, ``link_busy`` the share of the time that a site's link was busy, ``port_busy`` the same of
    the busiest rank's way out."""

    seconds: float
    tallies: list[list[Tally]]
    wide: list[int]
    link_busy: float
    port_busy: float
    most_in_hand: int = 0


class Port(simpy.Resource):
    """One direction of one link: a transfer at a time."""

    def __init__(self, env: simpy.Environment, rate: float) -> None:
        super().__init__(env, capacity=1)
        self.rate, self.busy = rate, 0.0

    def spend(self, size: float) -> float:
        took = size / self.rate
        self.busy += took
        return took


def trees(members: Members, parts: int, ranks: int, degree: int) -> list[dict[int, Route]]:
    """Every part's tree: the place of each rank that has one."""
    out = []
    for part in range(parts):
        owners = sorted(members(part))
        root = part % ranks
        inside = sorted({root, *owners}) if owners else []
        places = {rank: route(rank, root, owners, degree, part) for rank in inside}
        out.append({rank: place for rank, place in places.items() if place is not None})
    return out


def simulate(model: Model) -> Outcome:
    """Run it."""
    env = simpy.Environment()
    stored = [env.event() for _ in model.sizes]
    uplink = Port(env, model.link)
    for rank in range(model.trainer_ranks):
        env.process(_encoder(env, model, share(model.sizes, rank, model.trainer_ranks), uplink, stored))
    places = trees(model.members, len(model.sizes), model.site_ranks, model.degree)
    sites = [_Site(env, model, places, stored) for _ in range(model.sites)]
    env.run()
    return Outcome(
        max(site.ended for site in sites),
        [[rank.tally for rank in site.ranks] for site in sites],
        [site.wide for site in sites],
        max(site.link.busy for site in sites) / env.now,
        max(rank.out.busy for site in sites for rank in site.ranks) / env.now,
        max(rank.most for site in sites for rank in site.ranks),
    )


def _encoder(
    env: simpy.Environment, model: Model, mine: Sequence[int], uplink: Port, stored: list[simpy.Event]
) -> Step:
    """A trainer rank: each part uploads while the next is encoded, a few at a time."""
    slots = simpy.Resource(env, capacity=model.uploads)

    def upload(part: int, slot: Any) -> Step:
        yield env.timeout(model.put_s)
        with uplink.request() as turn:
            yield turn
            yield env.timeout(uplink.spend(model.sizes[part]))
        slots.release(slot)
        stored[part].succeed()

    for part in mine:
        yield env.timeout(model.encode_s)
        slot = slots.request()
        yield slot
        env.process(upload(part, slot))


@dataclass
class _Rank:
    out: Port
    into: Port
    decoder: simpy.Resource
    slots: simpy.Resource
    tally: Tally = field(default_factory=Tally)
    most: int = 0


class _Site:
    """One site: its ranks, each with its parts in hand, and its link to the store."""

    def __init__(
        self, env: simpy.Environment, model: Model, places: Sequence[dict[int, Route]], stored: Sequence[simpy.Event]
    ) -> None:
        self._env, self._model, self._stored = env, model, stored
        self.link, self.wide, self.ended = Port(env, model.site_link), 0, 0.0
        self.ranks = [
            _Rank(
                Port(env, model.cluster_link),
                Port(env, model.cluster_link),
                simpy.Resource(env, capacity=1),
                simpy.Resource(env, capacity=model.window),
            )
            for _ in range(model.site_ranks)
        ]
        self._ready = [{rank: env.event() for rank in inside} for inside in places]
        self._there = [{rank: env.event() for rank in inside} for inside in places]
        ahead: list[list[tuple[int, Route]]] = [[] for _ in self.ranks]
        for part, inside in enumerate(places):
            for rank, place in inside.items():
                ahead[rank].append((part, place))
        for rank, mine in enumerate(ahead):
            env.process(self._work(rank, mine))

    def _work(self, number: int, mine: Sequence[tuple[int, Route]]) -> Step:
        """Take parts in hand in increasing order, as the window has room."""
        rank = self.ranks[number]
        for part, place in mine:
            slot = rank.slots.request()
            yield slot
            rank.most = max(rank.most, rank.slots.count)
            self._env.process(self._passage(number, part, place, slot))

    def _passage(self, number: int, part: int, place: Route, slot: Any) -> Step:
        """One part on its way through a rank: fetched or received, sent on and decoded, and gone once both are done."""
        env, rank, size = self._env, self.ranks[number], self._model.sizes[part]
        if place.parent is None:
            yield self._stored[part]
            yield env.timeout(self._model.get_s)
            with self.link.request() as turn:
                yield turn
                yield env.timeout(self.link.spend(size))
            self.wide += size
            rank.tally.fetched += size
        else:
            self._ready[part][number].succeed()
            yield self._there[part][number]
            rank.tally.received += size
        todo = [env.process(self._send(number, child, part)) for child in place.children]
        if number in self._model.members(part):
            todo.append(env.process(self._decode(rank)))
        yield env.all_of(todo)
        rank.slots.release(slot)

    def _send(self, number: int, child: int, part: int) -> Step:
        env, rank, size = self._env, self.ranks[number], self._model.sizes[part]
        rank.tally.sent += size
        rank.tally.sends += 1
        yield self._ready[part][child]
        with rank.out.request() as turn:
            yield turn
            with self.ranks[child].into.request() as other:
                yield other
                yield env.timeout(rank.out.spend(size))
        yield env.timeout(self._model.cluster_latency)
        self._there[part][child].succeed()

    def _decode(self, rank: _Rank) -> Step:
        with rank.decoder.request() as turn:
            yield turn
            yield self._env.timeout(self._model.decode_s)
        self.ended = self._env.now


def shards(parts: int, ranks: int, replicas: int) -> Members:
    """Owners as a site's layout has them: each replica is spread over its ranks in the parts' order."""
    each = ranks // replicas

    def members(part: int) -> tuple[int, ...]:
        owner = min(each - 1, part * each // parts)
        return tuple(owner + each * k for k in range(replicas))

    return members


def everybody(ranks: int) -> Members:
    """Every rank needs every part: a replica on each."""
    whole = range(ranks)
    return lambda part: whole
