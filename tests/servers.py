"""Servers that tests start: the real S3 server of ``bench/s3server.py``, and certificates for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from bench.s3server import BUCKET, S3Server

__all__ = ["BUCKET", "Certificates", "S3Server", "make_certificates"]


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority to trust, the server's certificate chain and its key."""

    ca: Path
    cert: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """A new authority and a certificate for 127.0.0.1, in ``folder``."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(str(made.ca))
    server.private_key_pem.write_to_path(str(made.key))
    for blob in server.cert_chain_pems:
        blob.write_to_path(str(made.cert), append=True)
    return made
