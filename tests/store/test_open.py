"""URLs, options, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcr_mpi.errors import UsageError
from dcr_mpi.store import S3Options, open_store
from dcr_mpi.store.options import MAX_PARTS, MIB

from .conftest import ROOT


def test_importing_and_opening_a_directory_loads_no_boto3() -> None:
    code = (
        "import sys, dcr_mpi.store as s; s.open_store('file:///x').stat('k'); s.S3Options(); "
        "print([m for m in sys.modules if m.startswith(('boto', 's3transfer'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_paths_and_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b%20"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    stores = [
        open_store(u)
        for u in (str(folder), "a b%20", f"file://{tmp_path}/a%20b%2520", f"file://localhost{tmp_path}/a%20b%2520")
    ]
    assert {s.url for s in stores} == {f"file://{tmp_path}/a%20b%2520"}
    assert stores[0].put_once("k", b"x")
    assert all(s.get("k") == b"x" for s in stores) and (folder / "k").exists()


def test_s3_urls() -> None:
    assert open_store("s3://bucket").url == "s3://bucket"
    assert open_store("s3://bucket/").url == "s3://bucket"
    assert open_store("s3://bucket/a/b/").url == "s3://bucket/a/b"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://x/y",
        "s3://",
        "s3:///p",
        "s3://b/a//b",
        "s3://b/../c",
        "s3://b/p?x=1",
        "file://host/p",
        "file://",
        "gs://b",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="standard AWS chain") as caught:
        open_store("s3://key:topsecret@bucket/p")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "127.0.0.1:9000"), ("ca_bundle", "/no/such.pem"), ("checksums", "always"), ("part_mib", 4),
        ("part_mib", 5121), ("multipart_mib", 0), ("multipart_mib", 5121), ("part_threads", 0),
        ("connect_timeout_s", 0), ("read_timeout_s", -1), ("attempts", 0), ("backoff_s", -0.1), ("deadline_s", 0),
    ],
)  # fmt: skip
def test_options_out_of_range_name_themselves(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"store option {name}: found {value!r}"):
        S3Options(**{name: value})  # type: ignore[arg-type]


def test_addressing_styles() -> None:
    from dcr_mpi.store.s3 import S3Store

    def url(**options: object) -> str:
        client = S3Store("bucket", "", S3Options(**options))._client  # type: ignore[arg-type]
        return str(client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "k"})).partition("?")[0]

    own = {"endpoint": "https://s3.site.example"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        assert url(**own) == url(**own, path_style=True) == "https://s3.site.example/bucket/k"
        assert url(**own, path_style=False) == "https://bucket.s3.site.example/k"
        assert url(region="eu-north-1").startswith("https://bucket.s3.")


@pytest.mark.parametrize("size", [0, 1, 16 * MIB, 16 * MIB * MAX_PARTS, 16 * MIB * MAX_PARTS + 1, 5 << 40])
def test_parts_never_number_over_ten_thousand(size: int) -> None:
    part = S3Options().part_bytes(size)
    assert -(-size // part) <= MAX_PARTS
    assert part % MIB == 0 and part >= 16 * MIB
    assert part == 16 * MIB or -(-size // (part - MIB)) > MAX_PARTS  # and no larger than that needs
