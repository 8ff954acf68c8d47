"""What a campaign counted and what it found, as ``bench/out/campaign.json`` holds it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """Counts by name, the same by section and scene, and a sentence for every failure.

    ``counts`` has ``kill_points``, ``error_points``, ``power_loss_orders`` and ``hostile_parts``; a section may add
    its own.
    """

    counts: Counter[str] = field(default_factory=Counter)
    detail: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, name: str, section: str, scene: str, number: int = 1) -> None:
        """Add to a total and to its share by scene."""
        self.counts[name] += number
        self.detail.setdefault(section, Counter())[scene] += number

    def fail(self, where: str, why: str) -> None:
        self.failures.append(f"{where}: {why}")

    def plain(self) -> dict[str, Any]:
        names = ("kill_points", "error_points", "power_loss_orders", "hostile_parts")
        return {
            **{name: self.counts[name] for name in names},
            **{name: number for name, number in sorted(self.counts.items()) if name not in names},
            "detail": {section: dict(sorted(scenes.items())) for section, scenes in self.detail.items()},
            "seconds": {section: round(wall, 1) for section, wall in self.seconds.items()},
            "failures": self.failures,
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.plain(), indent=2) + "\n")
