"""What is planned, what may be chosen, and what a plan says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .payload import Positions, Share

MIB = 1 << 20
Transport = Literal["store", "direct"]
Mode = Literal["staying", "jobs"]


@dataclass(frozen=True)
class Scenario:
    """What is to be planned; rates in bytes per second, times in seconds.

    Parameters
    ----------
    replicas : int
        Copies of the model at a site: so many ranks need each part.
    link, site_link : float
        From the trainer to the store, or to all sites together where the transport is direct; and into one site.
    cluster_link, cluster_latency : float
        Of one rank inside a site, each way.
    latency : float
        One way, between the trainer or a site and the store, or between trainer and site.
    poll : (float, float)
        First and longest pause between two looks into the store (``commit.poll_s``).
    launch_s : float
        From asking for a job to its first line of Python; for ``mode`` "jobs" alone.
    cores : int, optional
        Trainer, sites and store are on one machine of so many cores; None gives every rank its own.
    """

    shares: tuple[Share, ...]
    link: float
    site_link: float
    trainer_ranks: int = 1
    site_ranks: int = 1
    sites: int = 1
    replicas: int = 1
    site_nodes: int = 1
    cluster_link: float = 2.5e9
    cluster_latency: float = 1e-4
    latency: float = 0.0
    transport: Transport = "store"
    mode: Mode = "staying"
    launch_s: float = 0.0
    cores: int | None = None
    tiles: int = 8000
    window: int = 4
    poll: tuple[float, float] = (0.05, 2.0)
    bucket: float = 32.0 * MIB
    block: int = 1 << 18

    @property
    def dense_bytes(self) -> float:
        return sum(s.dense_bytes for s in self.shares)

    @property
    def changed(self) -> float:
        return sum(s.changed for s in self.shares)


@dataclass(frozen=True)
class Choice:
    """What may be chosen: how positions are coded, dense bytes of a part, children in the relay tree."""

    positions: Positions
    part: float
    degree: int


@dataclass(frozen=True)
class Stage:
    """``busy_s``: what the stage takes by itself; ``adds_s``: what it adds to the whole, and these add up to it."""

    name: str
    busy_s: float
    adds_s: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A refit: from the moment that the trainer's checkpoint is there to the moment that the last site has applied
    it."""

    choice: Choice
    parts: int
    dense_bytes: float
    payload_bytes: float
    changed: float
    stages: tuple[Stage, ...]
    full_s: float
    transport_s: float
    bottleneck: str

    @property
    def total_s(self) -> float:
        return sum(stage.adds_s for stage in self.stages)

    @property
    def pause_s(self) -> float:
        """The whole last stage, the apply: what whoever reads the replica waits."""
        return self.stages[-1].adds_s

    @property
    def transport_share(self) -> float:
        """The payload's time at the link's rate over the whole."""
        return self.transport_s / self.total_s

    @property
    def speedup(self) -> float:
        """Against the whole checkpoint on the same link, and nothing else done."""
        return self.full_s / self.total_s
