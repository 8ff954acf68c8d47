"""Signatures by themselves: what verifies, and that nothing else does."""

from __future__ import annotations

import hmac
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.digest import sha256
from dcr_mpi.errors import CorruptInput, NotAuthentic, UsageError
from dcr_mpi.signing import NO_KEYS, NOBODY, Keyring, Place, Trust
from dcr_mpi.signing.shared import SharedKey
from tests.signing.keys import OTHER, PUBLISHER, SITE, STRANGER, TRUSTED, rings

PLACE = Place("p/versions/000007/manifest.json", "publisher", 7)
CONTENT = b'{"a":1}'


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
def test_what_one_side_signs_the_other_takes(kind: str) -> None:
    trainer, site = rings(kind)
    sealed = trainer.seal(PLACE, CONTENT)
    assert sealed == trainer.seal(PLACE, CONTENT), "the same bytes each time: a re-run puts them again"
    assert site.open(PLACE, sealed) == CONTENT
    assert NO_KEYS.open(PLACE, sealed) == CONTENT, "without keys a signature is passed over"
    assert NO_KEYS.seal(PLACE, CONTENT) == CONTENT


def test_the_signed_message_is_the_documented_one() -> None:
    """By other means than ours: what docs/security.md says of the message, straight to the algorithms."""
    message = b"dcr-mpi signature 1\np/versions/000007/manifest.json\n" + sha256(CONTENT).encode()
    line = json.loads(rings("hmac")[0].seal(PLACE, CONTENT).split(b"\n")[1])
    assert line["signature"] == hmac.new(b"s" * 32, message, "sha256").hexdigest()
    line = json.loads(rings("ed25519")[0].seal(PLACE, CONTENT).split(b"\n")[1])
    Ed25519PublicKey.from_public_bytes(PUBLISHER.raw).verify(bytes.fromhex(line["signature"]), message)


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
@given(data=st.data())
def test_no_changed_byte_passes(kind: str, data: st.DataObject) -> None:
    trainer, site = rings(kind)
    sealed = bytearray(trainer.seal(PLACE, CONTENT))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((NotAuthentic, CorruptInput)):
        site.open(PLACE, bytes(sealed))


@pytest.mark.parametrize("kind", ["ed25519", "hmac"])
@pytest.mark.parametrize(
    "key",
    [
        "p/versions/000008/manifest.json",
        "q/versions/000007/manifest.json",
        "p/anchors/000007/manifest.json",
        "p/versions/000007/decision.json",
    ],
)
def test_a_signature_is_for_one_key_of_the_store(kind: str, key: str) -> None:
    trainer, site = rings(kind)
    with pytest.raises(NotAuthentic, match="for another place"):
        site.open(Place(key, "publisher", 7), trainer.seal(PLACE, CONTENT))


def test_roles() -> None:
    ring = Keyring(SITE, TRUSTED)
    mine = Place("p/versions/000007/prepared/s.json", "site s", 7)
    assert ring.open(mine, ring.seal(mine, CONTENT)) == CONTENT
    forged = Keyring(SITE, [Trust(SITE)]).seal(PLACE, CONTENT)
    with pytest.raises(NotAuthentic, match="of the site s, expected one by a key that is trusted for the publisher"):
        ring.open(PLACE, forged)
    with pytest.raises(NotAuthentic, match="of the site t"):
        ring.open(mine, Keyring(OTHER, [Trust(OTHER)]).seal(mine, CONTENT))
    with pytest.raises(NotAuthentic, match="which is unknown"):
        ring.open(mine, Keyring(STRANGER, [Trust(STRANGER)]).seal(mine, CONTENT))
    with pytest.raises(UsageError, match="expected one that the trust file accepts for the publisher"):
        ring.seal(PLACE, CONTENT)
    with pytest.raises(UsageError, match="no key to sign with"):
        Keyring(None, TRUSTED).seal(PLACE, CONTENT)
    assert Keyring(None, TRUSTED).open(mine, ring.seal(mine, CONTENT)) == CONTENT, "reading needs no key of one's own"
    with pytest.raises(NotAuthentic):
        NOBODY.open(mine, ring.seal(mine, CONTENT))


def test_rotation() -> None:
    """The old key counts up to a version; the new one signs; what the old one signs later is refused."""
    old, new = PUBLISHER, STRANGER
    trusted = [Trust(old, "publisher", until=7), Trust(new, "publisher")]
    before, after = Keyring(old, [Trust(old)]), Keyring(new, trusted)
    later = Place("p/versions/000008/manifest.json", "publisher", 8)
    assert after.open(PLACE, before.seal(PLACE, CONTENT)) == CONTENT
    assert after.open(Place("p/policy.json"), before.seal(Place("p/policy.json"), CONTENT)) == CONTENT
    assert after.open(later, after.seal(later, CONTENT)) == CONTENT
    with pytest.raises(NotAuthentic, match="of the publisher until version 7"):
        after.open(later, before.seal(later, CONTENT))
    with pytest.raises(UsageError):
        Keyring(old, trusted).seal(later, CONTENT)
    one, two = SharedKey(b"1" * 32), SharedKey(b"2" * 32)
    both = Keyring(two, [Trust(two), Trust(one)])
    assert both.open(PLACE, Keyring(one, [Trust(one)]).seal(PLACE, CONTENT)) == CONTENT
    assert Keyring(two, [Trust(two)]).open(PLACE, both.seal(PLACE, CONTENT)) == CONTENT


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'{"key":"0","signature":"00"}',
        b'{"key":"0000000000000000","signature":"zz"}',
        b'{"key":"0000000000000000","signature":"' + b"0" * 64 + b'"}\n{}',
        b" " * 1000,
    ],
    ids=range(7),
)
@pytest.mark.parametrize("ring", [NO_KEYS, Keyring(None, TRUSTED)], ids=["no keys", "keys"])
def test_a_malformed_signature_is_corrupt_with_and_without_keys(line: bytes, ring: Keyring) -> None:
    with pytest.raises(CorruptInput, match="signature of p/versions"):
        ring.open(PLACE, CONTENT + b"\n" + line)


def test_keys_do_not_show() -> None:
    shared = SharedKey(b"secret-secret-secret-secret-secret")
    for key in (shared, PUBLISHER):
        assert "secret-" not in repr(key) and (b"\x01" * 32).hex() not in repr(key)


def test_the_library_loads_only_when_a_key_is_met() -> None:
    code = "import sys; import dcr_mpi.cli.main; assert 'cryptography' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
