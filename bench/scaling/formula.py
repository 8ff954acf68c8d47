"""The same refit by the formulas of ``dcr plan``, and the simulation's model of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dcr_mpi.plan import DEFAULTS, Choice, Cost, Scenario, Share, Speeds, changes, payload, stream, through

from .simulate import Members, Model, everybody, shards

_REQUESTS = 2  # of a part: itself, and its announcement


@dataclass(frozen=True)
class Case:
    """One refit's stream, for both."""

    scenario: Scenario
    choice: Choice
    speeds: Speeds = DEFAULTS

    @property
    def parts(self) -> int:
        return math.ceil(self.scenario.dense_bytes / self.choice.part)

    @property
    def sent(self) -> float:
        s, c = self.scenario, self.choice
        return payload(s.shares, c.positions, c.part, s.bucket, s.block)

    def seconds(self) -> float:
        """By the formula: from the first part's encoding to the last one's decoding, looks and journals left out."""
        s = self.scenario
        steps = stream(s, self.speeds, self.choice, self.parts, self.sent)
        look = self.speeds.get_s + 2 * s.latency  # the one that finds the last part
        return through(steps, self.parts) - look - steps[-1].tail

    def model(self) -> Model:
        s, n, speeds = self.scenario, self.parts, self.speeds
        coding = s.dense_bytes / n, s.changed / n
        members: Members = (
            everybody(s.site_ranks) if s.replicas == s.site_ranks else shards(n, s.site_ranks, s.replicas)
        )
        return Model(
            [round(self.sent / n)] * n,
            members,
            s.trainer_ranks,
            s.site_ranks,
            s.sites,
            self.choice.degree,
            s.window,
            speeds.encode[self.choice.positions].seconds(*coding),
            speeds.prepare[self.choice.positions].seconds(*coding),
            s.link,
            s.site_link,
            s.cluster_link,
            s.cluster_latency,
            _REQUESTS * (speeds.put_s + 2 * s.latency),
            _REQUESTS * (speeds.get_s + 2 * s.latency),
        )


NOTHING_BUT_LINKS = replace(
    DEFAULTS,
    put_s=0.0,
    get_s=0.0,
    encode=dict.fromkeys(DEFAULTS.encode, Cost(0.0, 0.0)),
    prepare=dict.fromkeys(DEFAULTS.prepare, Cost(0.0, 0.0)),
)


def case(
    ranks: int, sites: int, replicas: int, degree: int, parts: int, *, part_mib: float = 16.0, link: float = 330e6,
    cluster_link: float = 2.5e9, window: int = 4, speeds: Speeds = DEFAULTS,
) -> Case:  # fmt: skip
    """A model of so many parts between as many ranks at the trainer as at every site, 3 % changed."""
    dense = parts * part_mib * (1 << 20)
    scenario = Scenario(
        (Share(changes("bf16", 0.03, "adam"), dense / 2),), link, link, ranks, ranks, sites, replicas,
        cluster_link=cluster_link, latency=0.0, window=window, poll=(0.0, 0.0), tiles=0,
    )  # fmt: skip
    return Case(scenario, Choice("class", part_mib * (1 << 20), degree), speeds)
