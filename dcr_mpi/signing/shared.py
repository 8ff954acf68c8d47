"""HMAC-SHA-256 with a key that all sides share: who can check a signature can also make one."""

from __future__ import annotations

import hmac

MIN_BYTES = 32


class SharedKey:
    """See :class:`.api.Signer`. ``secret``: 32 random bytes or more."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = hmac.digest(secret, b"dcr-mpi key id", "sha256")[:8].hex()

    def __repr__(self) -> str:  # a key must not get into a log by accident
        return f"SharedKey({self.id})"

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self._secret, message, "sha256")

    def verify(self, message: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(message), signature)
