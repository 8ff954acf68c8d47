"""The NeMo-DCR paper's cases (NVIDIA and Aalto University, October 2026) beside what our formulas give on the same
link.

Its replicas are in memory, so ours are here too, on a file system in memory: ``disk_rate`` is memcpy's. Only figures
that the paper gives are here; None is "not given". Its links are told by its own full transfers: 247.2 GB in 750 s,
and for 1T, whose bytes are not given, as many bytes a parameter as its 120B has, in 87.5 minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .law import Law, changes
from .payload import Share
from .refit import best
from .scenario import Scenario, Transport
from .speeds import Speeds

_BYTES_PER_PARAMETER = 247.2e9 / 120e9
_LINK = 247.2e9 / 750
_LINK_1T = 1e12 * _BYTES_PER_PARAMETER / (87.5 * 60)
_BITS = {0.03: 12.6, 0.05: 11.8}  # of its codec, per changed weight, on the adam law
_BYTES_PER_RANK = 4e9
_RANKS_PER_NODE = 8
SPEEDUP = (12.0, 40.0)  # over all sizes and both rates
SHARE = (0.77, 0.94)  # transport's, in its relay tree's stress cases


@dataclass(frozen=True)
class _Model:
    name: str
    parameters: float
    link: float
    full_s: float | None


_MODELS = (
    _Model("30B", 30e9, _LINK, None),
    _Model("120B", 120e9, _LINK, 750.0),
    _Model("1T", 1e12, _LINK_1T, 87.5 * 60),
)


def _given(model: _Model, fraction: float, transport: Transport) -> tuple[float, float] | None:
    """Its seconds of a refit, as a range; for 120B the paper's range is over both rates and transports."""
    if model.name == "120B":
        return 22.6, 49.7
    if model.name == "1T" and fraction == 0.03 and transport == "direct":
        return 150.0, 150.0
    return None


def paper_rows(speeds: Speeds, law: Law = "adam") -> list[dict[str, Any]]:
    """A row for each model, rate and transport. Its relay tree is our direct transport."""
    rows, in_memory = [], replace(speeds, disk_rate=speeds.memcpy, sync_s=0.0)
    for model in _MODELS:
        size = model.parameters * _BYTES_PER_PARAMETER
        ranks = max(1, round(size / _BYTES_PER_RANK))
        for fraction, bits in _BITS.items():
            share = Share(changes("bf16", fraction, law), size / 2)
            transports: tuple[Transport, ...] = ("store", "direct")
            for transport in transports:
                ours = best(
                    Scenario(
                        (share,), model.link, model.link, ranks, ranks, site_nodes=-(-ranks // _RANKS_PER_NODE),
                        latency=0.03, transport=transport, poll=(0.01, 0.1),
                    ),
                    in_memory,
                )  # fmt: skip
                sent = share.changed * bits / 8
                rows.append({
                    "model": model.name, "changed": fraction, "transport": transport, "ranks": ranks,
                    "dense_bytes": size, "link_bytes_s": model.link,
                    "paper": {
                        "full_s": model.full_s, "refit_s": _given(model, fraction, transport), "speedup": SPEEDUP,
                        "transport_share": SHARE if transport == "direct" else None, "bits_per_change": bits,
                        "payload_s": sent / model.link,
                    },
                    "ours": {
                        "full_s": ours.full_s, "refit_s": ours.total_s, "speedup": ours.speedup,
                        "transport_share": ours.transport_share, "pause_s": ours.pause_s,
                        "bits_per_change": 8 * ours.payload_bytes / ours.changed, "payload_s": ours.transport_s,
                        "bottleneck": ours.bottleneck, "positions": ours.choice.positions,
                        "part_mib": ours.choice.part / (1 << 20),
                    },
                })  # fmt: skip
    return rows
