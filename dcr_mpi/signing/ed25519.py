"""Ed25519: who can check a signature cannot make one. The only door to ``cryptography``, opened when a key is met."""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import UsageError


class PublicKey:
    """See :class:`.api.Verifier`. ``raw``: the 32 bytes of a public key; ValueError for others."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._key = _library().Ed25519PublicKey.from_public_bytes(raw)
        self.id = hashlib.sha256(b"dcr-mpi ed25519 " + raw).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"

    def verify(self, message: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class SecretKey(PublicKey):
    """See :class:`.api.Signer`. ``seed``: 32 random bytes; ValueError for another number of them."""

    def __init__(self, seed: bytes) -> None:
        self._secret = _library().Ed25519PrivateKey.from_private_bytes(seed)
        super().__init__(self._secret.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        return self._secret.sign(message)


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError(
            "an Ed25519 key",
            found="no module 'cryptography'",
            expected="it, to sign and to verify",
            remedy="pip install 'dcr-mpi[ed25519]', or use a shared key (dcr keygen --shared)",
        ) from None
    return ed25519
