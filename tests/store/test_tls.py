"""S3 in the clear: this machine, or consent."""

from __future__ import annotations

import pytest

from dcr_mpi.errors import UsageError
from dcr_mpi.store import S3Options, open_store


@pytest.mark.parametrize("endpoint", ["http://s3.site.example:9000", "http://10.0.0.1", "http://127.0.0.1.example"])
@pytest.mark.parametrize("how", ["option", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_plain_http_needs_consent(monkeypatch: pytest.MonkeyPatch, endpoint: str, how: str) -> None:
    """Wherever the endpoint comes from: boto3 takes it from the environment too."""
    if how != "option":
        monkeypatch.setenv(how, endpoint)
    given = endpoint if how == "option" else None
    with pytest.raises(UsageError, match=r"S3 endpoint: found http://.*expected https://.*plain_http"):
        open_store("s3://bucket/prefix", S3Options(endpoint=given))
    open_store("s3://bucket/prefix", S3Options(endpoint=given, plain_http=True))


@pytest.mark.parametrize(
    "endpoint", ["https://s3.site.example", None, "http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"]
)
def test_tls_and_this_machine_need_none(endpoint: str | None) -> None:
    open_store("s3://bucket/prefix", S3Options(endpoint=endpoint))
