"""What a key can do, whatever its algorithm, and what a signature is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PUBLISHER = "publisher"


class Verifier(Protocol):
    """Checks signatures. ``id``: 16 hex digits that name the key and its algorithm, and give nothing of it away."""

    id: str

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` was made of ``message`` with this key; False for any other bytes."""
        ...


class Signer(Verifier, Protocol):
    """Makes signatures too. The same message always has the same one, so that a re-run puts the same bytes."""

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``, 32 to 64 bytes."""
        ...


@dataclass(frozen=True)
class Place:
    """Where an object stands: its key in the store, who must have written it, and its version (None: of all).

    ``role`` is "publisher" or "site NAME".
    """

    key: str
    role: str = PUBLISHER
    version: int | None = None


def site_role(site: str) -> str:
    """The role of a site."""
    return f"site {site}"
