"""A certificate for one run of one rank: named by its SHA-256 in the store, gone with the process."""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from contextlib import suppress

from ..errors import UsageError


def server_context() -> tuple[ssl.SSLContext, str]:
    """A context for TLS 1.3 with a new key, and the SHA-256 of its certificate in hex. No key reaches a disk.

    Raises
    ------
    UsageError
        ``cryptography`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UsageError(
            "relay.transport: direct",
            found="no module 'cryptography'",
            expected="it, to make a certificate",
            remedy="pip install 'dcr-mpi[direct]' at the trainer (sites need nothing), or use relay.transport: store",
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dcr-mpi")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # nobody looks: clients go by the digest
        .not_valid_after(now + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    file = os.memfd_create("certificate")  # the ssl module reads files only
    try:
        os.write(file, made.public_bytes(serialization.Encoding.PEM) + secret)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        with suppress(OSError):
            os.close(file)
    return context, hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()


def client_context() -> ssl.SSLContext:
    """A context for TLS 1.3 that takes any certificate: whoever uses it compares its SHA-256 before a byte is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
