"""The same refit by the formulas of ``dcr plan``, and the simulation's model of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcr_mpi.plan import Choice, Scenario, Share, Speeds, changes, payload, stream, through

from .simulate import Members, Model, everybody, shards

_REQUESTS = 2  # of a part: itself, and its announcement


@dataclass(frozen=True)
class Case:
    """One refit's stream, for both."""

    scenario: Scenario
    choice: Choice

    @property
    def parts(self) -> int:
        return math.ceil(self.scenario.dense_bytes / self.choice.part)

    @property
    def sent(self) -> float:
        s, c = self.scenario, self.choice
        return payload(s.shares, c.positions, c.part, s.bucket, s.block)

    def seconds(self, speeds: Speeds) -> float:
        """By the formula: from the first part's encoding to the last one's decoding, looks and journals left out."""
        s = self.scenario
        steps = stream(s, speeds, self.choice, self.parts, self.sent)
        return through(steps, self.parts) - steps[-1].tail

    def model(self, speeds: Speeds) -> Model:
        s, n = self.scenario, self.parts
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


def case(
    ranks: int, sites: int, replicas: int, degree: int, parts: int, *, changed: float = 0.03, part_mib: float = 16.0,
    link: float = 330e6, cluster_link: float = 2.5e9,
) -> Case:  # fmt: skip
    """A model of so many parts between as many ranks at the trainer as at every site."""
    dense = parts * part_mib * (1 << 20)
    scenario = Scenario(
        (Share(changes("bf16", changed, "adam"), dense / 2),), link, link, ranks, ranks, sites, replicas,
        cluster_link=cluster_link, latency=0.0, poll=(0.0, 0.0),
    )  # fmt: skip
    return Case(scenario, Choice("class", part_mib * (1 << 20), degree))
