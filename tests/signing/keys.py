"""Keyrings for tests: a publisher, sites, and somebody nobody trusts."""

from __future__ import annotations

from dcr_mpi.signing import Keyring, Trust
from dcr_mpi.signing.ed25519 import SecretKey
from dcr_mpi.signing.shared import SharedKey

PUBLISHER, SITE, OTHER, STRANGER = (SecretKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
TRUSTED = (Trust(PUBLISHER, "publisher"), Trust(SITE, "site s"), Trust(OTHER, "site t"))


def rings(kind: str) -> tuple[Keyring, Keyring]:
    """(the trainer's, site s's) for "ed25519" or "hmac"."""
    if kind == "hmac":
        shared = SharedKey(b"s" * 32)
        return Keyring(shared, [Trust(shared)]), Keyring(shared, [Trust(shared)])
    return Keyring(PUBLISHER, TRUSTED), Keyring(SITE, TRUSTED)
