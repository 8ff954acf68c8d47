"""Lost power: what a file system may hold afterwards is built from a recording, and the product recovers from it.

``recording`` reads strace's log, ``disk`` is the model of a file system with volatile and durable state, ``section``
walks through a recording and tries states that it may have left.
"""

from tests.campaign.power.section import run

__all__ = ["run"]
