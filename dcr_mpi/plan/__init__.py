"""What a refit would take: laws of change, payload, and the pipeline of a refit as formulas. Pure; see
docs/planning.md."""

from .law import SPREADS, Changes, Law, changes
from .paper import paper_rows
from .payload import POSITIONS, Positions, Share, bits_per_change, payload
from .refit import DEGREES, PARTS, Step, best, plan, stream, through
from .scenario import MIB, Choice, Mode, Plan, Scenario, Stage, Transport
from .speeds import DEFAULTS, Cost, Fixed, Speeds, check_speeds, read_speeds

__all__ = [
    "DEFAULTS",
    "DEGREES",
    "MIB",
    "PARTS",
    "POSITIONS",
    "SPREADS",
    "Changes",
    "Choice",
    "Cost",
    "Fixed",
    "Law",
    "Mode",
    "Plan",
    "Positions",
    "Scenario",
    "Share",
    "Speeds",
    "Stage",
    "Step",
    "Transport",
    "best",
    "bits_per_change",
    "changes",
    "check_speeds",
    "paper_rows",
    "payload",
    "plan",
    "read_speeds",
    "stream",
    "through",
]
