"""The seconds of a refit, as a pipeline of parts: every formula here is derived in docs/planning.md.

A stage has a *way*, the seconds that one part takes through it, and a *beat*, the seconds between two parts where it is
kept busy. Parts are equal, so a pipeline of ``n`` takes the sum of all ways and ``n - 1`` times the longest beat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..tree import depth
from .payload import Positions, payload
from .scenario import MIB, Choice, Plan, Scenario, Stage
from .speeds import Speeds

_UPLOADS = 2  # in flight per rank
_EFFICIENCY = 0.6  # of links inside a site: ranks wait for one another (docs/scaling.md)
_ALONE = 0.95  # of a core: who got more had nobody beside it
_LOOK_S = 1e-3  # at least from one look to the next, pause or not
_REQUESTS = 2  # of a part: itself, and its announcement


@dataclass(frozen=True)
class Step:
    """A stage that parts come through: seconds of one part's way, seconds between two, bytes in all; ``tail`` comes
    once, after the last part, ``cpu`` are the core-seconds of one part.

    ``run``: parts in a row that one and the same rank works on, one after another; 1 where ranks take turns."""

    name: str
    way: float
    beat: float
    size: float = 0.0
    tail: float = 0.0
    cpu: float = 0.0
    run: float = 1.0

    def queue(self, came: float) -> float:
        """What the last part waits for those before it in its run, if they came ``came`` seconds apart."""
        return (self.run - 1) * max(0.0, self.way - came)

    def alone(self, parts: int) -> float:
        """Seconds of the stage by itself."""
        return self.way + (parts - 1) * self.beat + self.queue(0.0) + self.tail


def through(steps: Sequence[Step], parts: int, shared: float = 0.0) -> float:
    """Seconds from the first part's start to the last one's end; ``shared``: the least seconds between two."""
    came = max(shared, *(step.beat for step in steps))
    return sum(step.way + step.queue(came) + step.tail for step in steps) + (parts - 1) * came


def plan(scenario: Scenario, speeds: Speeds, choice: Choice) -> Plan:
    """What a refit takes."""
    s = scenario
    sent = payload(s.shares, choice.positions, choice.part, s.bucket, s.block)
    n = max(1, math.ceil(s.dense_bytes / choice.part))
    steps = stream(s, speeds, choice, n, sent)
    if s.cores is not None:  # how long the cores take from part to part tells how many looks find nothing meanwhile
        steps = stream(s, speeds, choice, n, sent, _shared(s, speeds, steps))
    first, late = _begin(s, speeds)
    slowest = max(steps, key=lambda step: step.beat)
    work, shared = sum(step.cpu for step in steps), _shared(s, speeds, steps)
    came = max(slowest.beat, shared)
    bottleneck = slowest.name if slowest.beat >= shared else "cores"
    adds = {step.name: step.way + step.queue(came) + step.tail for step in steps}
    for step in steps:
        adds[step.name] += (n - 1) * came * (step.cpu / work if bottleneck == "cores" else step is slowest)
    # A site that is ready late has the parts that wait for it come at its own beat.
    waits = max(0.0, late + through(steps[2:], n, shared) - through(steps, n, shared))
    if s.cores is not None:  # a site reads its documents while cores are idle, and else they are work of the same cores
        documents = s.site_ranks * s.sites * speeds.refit_act.seconds(s.tiles) / hands(s, speeds, _everybody(s))
        waits = max(waits, documents - max(0.0, n - steps[-1].run) * (came - shared))
    decide, applied = _decide(s, speeds), _apply(s, speeds)
    stages = [Stage("start", first + late, first + waits)]
    stages += [Stage(step.name, step.alone(n), adds[step.name], step.size) for step in steps]
    stages += [Stage("decide", decide, decide), Stage("apply", applied, applied, s.dense_bytes * s.replicas)]
    link = min(s.link / (s.sites if s.transport == "direct" else 1), s.site_link)
    return Plan(
        choice, n, s.dense_bytes, sent, s.changed, tuple(stages), s.dense_bytes / link + s.latency,
        sent / link, bottleneck,
    )  # fmt: skip


def _shared(s: Scenario, speeds: Speeds, steps: Sequence[Step]) -> float:
    """Seconds between two parts that the cores need if everybody is on one machine."""
    work = sum(step.cpu for step in steps)
    return work / hands(s, speeds, _everybody(s)) if s.cores is not None else 0.0


def stream(s: Scenario, speeds: Speeds, choice: Choice, n: int, sent: float, apart: float = 0.0) -> list[Step]:
    """The stages that ``n`` parts of ``sent`` bytes in all stream through, in order; ``apart``: seconds that the cores
    take from one part to the next, if everybody is on one machine."""
    dense, part, changed = s.dense_bytes / n, sent / n, s.changed / n
    coders, roots = min(s.trainer_ranks, n), min(s.site_ranks, n)
    crowd = _everybody(s) / hands(s, speeds, _everybody(s))
    encode = speeds.encode[choice.positions].seconds(dense, changed) + s.tiles / n * speeds.encode_tile_s
    decode = speeds.prepare[choice.positions].seconds(dense, changed) + s.tiles / n * speeds.prepare_tile_s
    there = 2 * s.latency  # a request and its answer
    put, get = _REQUESTS * (speeds.put_s + there), _REQUESTS * (speeds.get_s + there)
    out, into = _slower(s.link, speeds.put_rate, coders * _UPLOADS), _slower(s.site_link, speeds.get_rate, roots)
    others = s.replicas - s.replicas / s.site_ranks  # ranks that get a part from another one, on average
    hops = depth(max(0, math.ceil(others)), choice.degree)
    relay = Step(
        "relay",
        hops * (choice.degree * part / s.cluster_link + s.cluster_latency) if others else 0.0,
        others / s.site_ranks * part / s.cluster_link / _EFFICIENCY,
        sent * others * s.sites,
    )
    # A rank has so many parts in hand at a time, and a part is in hand at its root and at all that need it.
    at_once = s.window * s.site_ranks / (1 + others)
    if s.transport == "store":
        up = put + part / _slower(s.link, speeds.put_rate, 1)
        # On one machine a request is work of its cores, the client's and the server's that it waits for, and bytes are.
        work = _REQUESTS * speeds.put_s + part * speeds.put_byte_s
        upload = Step("upload", up, max(part / out, up / (coders * _UPLOADS)), sent, cpu=work)
        down = get + part / _slower(s.site_link, speeds.get_rate, 1)
        full = max(0.0, n / at_once - 1) * (down + relay.way + decode) / max(n - 1, 1)
        looking = min(apart, looks(s, apart * roots) * speeds.get_s)  # they fill what time there is: a core's, at most
        # Who waits for a part first finds that it is there; parts that wait for somebody are asked for at once.
        found = down + speeds.get_s + there + look_s(s, encode / coders)
        asked = (_REQUESTS + 1) * speeds.get_s + part * speeds.get_byte_s + looking
        fetch = Step("fetch", found, max(part / into, full), sent * s.sites, cpu=asked * (s.sites if s.cores else 1))
    else:  # one connection from a rank of the trainer to a root at each site: bytes pass, nothing is stored on the way
        rate = min(s.link / s.sites, s.site_link)
        upload = Step("upload", part / rate + s.latency, part / rate, sent * s.sites)
        full = max(0.0, n / at_once - 1) * (relay.way + decode) / max(n - 1, 1)
        fetch = Step("fetch", 0.0, full, sent * s.sites)
    # A part's words go to one rank of each replica, and to the same one as its neighbours' do.
    run = max(1.0, n * s.replicas / s.site_ranks)
    words = sum(x.changed * (1 + x.law.kind.word_bytes) for x in s.shares) * s.replicas
    sites = s.sites if s.cores is not None else 1
    journal = words * sites / (speeds.disk_rate * s.site_nodes) + speeds.sync_s
    return [
        Step("encode", encode * crowd, encode / coders, s.dense_bytes, cpu=encode),
        upload,
        fetch,
        relay,
        Step(
            "prepare", decode * crowd, 0.0, s.dense_bytes * s.replicas, journal, cpu=decode * s.replicas * sites,
            run=run
        ),
    ]  # fmt: skip


def _everybody(s: Scenario) -> int:
    return s.trainer_ranks + s.site_ranks * s.sites


def hands(s: Scenario, speeds: Speeds, processes: int) -> float:
    """Cores that so many busy processes have between them.

    One on a machine of ``cores`` that got ``core_share`` of a core had ``cores / core_share - 1`` others beside it, and
    each of ours gets what any of theirs does.
    """
    if s.cores is None:
        return processes
    others = max(0.0, s.cores / speeds.core_share - 1) if speeds.core_share < _ALONE else 0.0
    return min(float(processes), s.cores * processes / (processes + others))


def _slower(link: float, stream: float | None, streams: int) -> float:
    """A link, or what so many streams of a store's clients can do where that is less."""
    return link if stream is None else min(link, stream * streams)


def look_s(s: Scenario, waited: float) -> float:
    """Seconds, on average, from the moment that something is in the store to the look that finds it.

    Pauses grow by half each: after ``waited`` seconds of looking they are half as long as that, between the shortest
    and the longest. The moment falls anywhere in one.
    """
    shortest, longest = s.poll
    return min(longest, max(shortest, waited / 2)) / 2


def looks(s: Scenario, waited: float) -> float:
    """How many looks find nothing in so many seconds: their pauses grow by half each, up to the longest."""
    shortest, longest = (max(pause, _LOOK_S) for pause in s.poll)
    growing = min(waited, 2 * (longest - shortest))
    return math.log1p(growing / (2 * shortest)) / math.log(1.5) + (waited - growing) / longest


def _begin(s: Scenario, speeds: Speeds) -> tuple[float, float]:
    """Until the version is opened; and from then until a site is ready for its first part."""
    requests = 4 * (speeds.get_s + 2 * s.latency) + 2 * (speeds.put_s + 2 * s.latency)
    detect = (
        look_s(s, 60.0) if s.mode == "staying" else s.launch_s + _starting(s, speeds, s.trainer_ranks + s.site_ranks)
    )
    crowd = s.trainer_ranks / hands(s, speeds, s.trainer_ranks)
    first = detect + speeds.encode_act.seconds(s.tiles) * crowd + requests
    late = speeds.refit_act.seconds(s.tiles) + 4 * (speeds.get_s + 2 * s.latency)
    return first, late + (look_s(s, 60.0) if s.mode == "staying" else look_s(s, first))


def _starting(s: Scenario, speeds: Speeds, processes: int) -> float:
    """So many processes that start together."""
    return speeds.start_s * processes / hands(s, speeds, processes)


def _decide(s: Scenario, speeds: Speeds) -> float:
    """From the last journal to an apply that may begin: manifest, receipt and decision, each put and then found."""
    put, get = speeds.put_s + 2 * s.latency, speeds.get_s + 2 * s.latency
    found = 3 * look_s(s, s.poll[1])
    again = s.launch_s + _starting(s, speeds, 1 + s.site_ranks) if s.mode == "jobs" else 0.0
    return 3 * put + 4 * get + found + 4 * speeds.sync_s + again


def _apply(s: Scenario, speeds: Speeds) -> float:
    """The act, which is the pause of whoever reads the replica, too: documents read, words written and durable."""
    sites = s.sites if s.cores is not None else 1
    working = s.site_ranks * sites
    work = speeds.apply.seconds(s.dense_bytes, s.changed) * s.replicas * sites / hands(s, speeds, working)
    touched = sum(x.dense_bytes * -math.expm1(s.block * math.log1p(-x.law.fraction)) for x in s.shares)
    disk = touched * s.replicas * sites / (speeds.disk_rate * s.site_nodes)
    documents = speeds.apply_act.seconds(s.tiles) * working / hands(s, speeds, working)
    get, put = speeds.get_s + 2 * s.latency, speeds.put_s + 2 * s.latency
    return work + disk + 3 * speeds.sync_s + documents + 2 * get + put


PARTS = tuple(float(MIB << k) for k in range(9))  # 1 to 256 MiB
DEGREES = (1, 2, 3, 4, 8, 16)


def best(
    scenario: Scenario,
    speeds: Speeds,
    positions: Sequence[Positions] = ("class", "plain"),
    parts: Sequence[float] = PARTS,
    degrees: Sequence[int] = DEGREES,
) -> Plan:
    """The choice that makes the refit shortest, of those given; of equal ones the one with the fewest parts."""
    found: Plan | None = None
    for part in sorted(parts, reverse=True):
        for how in positions:
            for degree in degrees:
                here = plan(scenario, speeds, Choice(how, part, degree))
                if found is None or here.total_s < found.total_s * (1 - 1e-9):
                    found = here
    assert found is not None
    return found
