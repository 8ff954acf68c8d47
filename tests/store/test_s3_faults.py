"""S3 answers that a healthy server does not give: right outcome, right class, bounded time."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator

import pytest

from dcr_mpi.errors import CorruptInput, ResourceError, StoreDenied, StoreUnavailable
from dcr_mpi.store import S3Options, Stat, Store, open_store

from .conftest import use_credentials
from .stub import Fault, Stub, cut, error, lost_reply, reset, stall

MIB = 1 << 20
ATTEMPTS = 4
DATA = random.Random(1).randbytes(3 * MIB)
OPTIONS = S3Options(
    connect_timeout_s=0.5, read_timeout_s=0.5, attempts=ATTEMPTS, backoff_s=0.01, deadline_s=8,
    multipart_mib=5, part_mib=5, part_threads=1,
)  # fmt: skip
SLOW_DOWN, INTERNAL = error(503, "SlowDown"), error(500, "InternalError")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    use_credentials(monkeypatch, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "NO_PROXY": "127.0.0.1"})
    server = Stub()
    server.objects["/b/p/k"] = DATA
    began = time.monotonic()
    yield server
    server.close()
    assert time.monotonic() - began < 15


@pytest.fixture
def store(stub: Stub) -> Store:
    return opened(stub)


def opened(stub: Stub, **changes: object) -> Store:
    return open_store("s3://b/p", dataclasses.replace(OPTIONS, endpoint=stub.endpoint, **changes))  # type: ignore[arg-type]


PASSING = {
    "slow down": SLOW_DOWN, "internal": INTERNAL, "bad gateway without XML": lambda h: h.answer(502, b"<html>"),
    "throttled": error(429, "TooManyRequests"), "request timeout": error(400, "RequestTimeout"), "reset": reset,
    "conflict": error(409, "ConditionalRequestConflict"), "stall": stall, "damaged on the way": error(400, "BadDigest"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_is_retried(stub: Stub, store: Store, fault: Fault) -> None:
    stub.faults = [fault] * (ATTEMPTS - 1)
    assert store.put_once("new", b"abc")
    assert stub.objects["/b/p/new"] == b"abc"
    stub.faults = [fault] * (ATTEMPTS - 1)
    assert store.get("new") == b"abc"
    stub.faults = [fault]
    assert store.stat("new") == Stat(3)


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_does_not_pass_ends_bounded(stub: Stub, store: Store, fault: Fault) -> None:
    stub.faults = [fault] * 100
    with pytest.raises(StoreUnavailable, match=rf"put s3://b/p/new: gave up after {ATTEMPTS} attempts in .*: found .+"):
        store.put_once("new", b"abc")
    assert len(stub.seen) == ATTEMPTS
    assert "/b/p/new" not in stub.objects
    with pytest.raises(StoreUnavailable, match=rf"get s3://b/p/k: gave up after {ATTEMPTS} attempts"):
        store.get("k")
    assert len(stub.seen) == 2 * ATTEMPTS  # no other layer retries


def test_the_deadline_bounds_it_too(stub: Stub) -> None:
    stub.faults = [SLOW_DOWN] * 1000
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="gave up after"):
        opened(stub, attempts=1000, backoff_s=0.2, deadline_s=1.0).get("k")
    assert time.monotonic() - began < 2


def test_retry_after_is_honoured(stub: Stub, store: Store) -> None:
    stub.faults = [error(503, "SlowDown", Retry_After="1")]
    began = time.monotonic()
    assert store.stat("k") == Stat(len(DATA))
    assert 1 <= time.monotonic() - began < 3
    stub.faults = [error(503, "SlowDown", Retry_After="3600")]
    with pytest.raises(
        StoreUnavailable, match="gave up after 1 attempt in"
    ):  # longer than the deadline: no use waiting
        store.stat("k")


DENIED = {
    "permission": (403, "AccessDenied", "docs/store.md"), "key": (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
    "secret": (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"), "expired": (400, "ExpiredToken", "expired"),
    "clock": (403, "RequestTimeTooSkewed", "clock is wrong"), "bucket": (404, "NoSuchBucket", "bucket does not exist"),
    "region": (400, "AuthorizationHeaderMalformed", "region"), "moved": (301, "PermanentRedirect", "region"),
    "lacking": (501, "NotImplemented", "If-None-Match"), "no S3": (404, "", "path_style"),
    "checksum": (400, "InvalidRequest", "when_required"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "code", "says"), DENIED.values(), ids=DENIED)
def test_refusals_are_final_and_say_why(stub: Stub, store: Store, status: int, code: str, says: str) -> None:
    fault = error(status, code) if code else (lambda h: h.answer(404, b"<html>no such page</html>"))
    for call in (lambda: store.put_once("new", b""), lambda: store.get("k"), lambda: store.sweep("", 0)):
        stub.seen.clear()
        stub.faults = [fault] * 3
        with pytest.raises(StoreDenied, match=says):
            call()
        assert len(stub.seen) <= (4 if status == 301 else 1)  # botocore itself looks for the bucket's region
    stub.faults = [fault] * 3  # HEAD has no body: the reason takes a second question
    with pytest.raises(StoreDenied, match=says):
        opened(stub).stat("k")


def test_a_wrong_clock_shows_both_clocks(stub: Stub, store: Store) -> None:
    stub.faults = [error(403, "RequestTimeTooSkewed")]
    with pytest.raises(StoreDenied, match=r"the store says \w+, .* GMT, this machine \w+, .* GMT"):
        store.get("k")


def test_a_full_store_is_a_resource(stub: Stub, store: Store) -> None:
    stub.faults = [error(507, "InsufficientStorage")]
    with pytest.raises(ResourceError, match="full"):
        store.put_once("new", b"abc")


def test_missing_credentials_say_so(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch, {"AWS_EC2_METADATA_DISABLED": "true"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreDenied, match="set AWS_ACCESS_KEY_ID"):
        opened(stub).get("k")


def test_nobody_listens(stub: Stub) -> None:
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError"):
        open_store("s3://b/p", dataclasses.replace(OPTIONS, endpoint="http://127.0.0.1:9")).get("k")


@pytest.mark.parametrize("then", ["close", "reset", "stall"])
@pytest.mark.parametrize("at", [0, 1, 1000, MIB, MIB + 1, len(DATA) - 1])
def test_a_body_cut_short_is_resumed(stub: Stub, store: Store, at: int, then: str) -> None:
    stub.faults = [cut(at, then)]
    assert store.get("k") == DATA
    stub.faults = [cut(at // 2, then)]
    assert store.get("k", 17, len(DATA) - 5) == DATA[17:-5]


def test_resuming_asks_only_for_the_rest_of_the_same_object(stub: Stub, store: Store) -> None:
    stub.faults = [cut(MIB + 5), SLOW_DOWN, cut(MIB)]
    assert store.get("k", 100) == DATA[100:]
    (_, _, first), (_, _, second), (_, _, third), (_, _, fourth) = stub.seen
    assert "If-Match" not in first and first["Range"] == "bytes=100-"
    assert second["Range"] == third["Range"] and second["If-Match"] == third["If-Match"] == fourth["If-Match"]
    starts = [int(h["Range"][6:-1]) for h in (second, fourth)]
    assert 100 + MIB - 128 * 1024 < starts[0] <= 100 + MIB + 5 and starts[0] < starts[1] < len(DATA)


def test_progress_renews_the_attempts(stub: Stub, store: Store) -> None:
    stub.faults = [cut(200 * 1024)] * 20  # more cuts than attempts, each brings something
    assert store.get("k") == DATA


def test_a_body_that_stays_short_is_corrupt(stub: Stub, store: Store) -> None:
    stub.faults = [cut(MIB), *[cut(0)] * 100]
    with pytest.raises(CorruptInput, match=f"gave up after {ATTEMPTS} attempts .* early"):
        store.get("k")
    assert len(stub.seen) == 1 + ATTEMPTS
    stub.faults = [cut(MIB), *[cut(0, "reset")] * 100]  # the network's doing, not the object's
    with pytest.raises(StoreUnavailable, match="gave up"):
        store.get("k")


def test_another_object_on_resuming_is_corrupt(stub: Stub, store: Store) -> None:
    def swap(handler: object) -> bool:
        stub.objects["/b/p/k"] = DATA[::-1]
        return True

    stub.faults = [cut(MIB), swap]
    with pytest.raises(CorruptInput, match="another object"):
        store.get("k")


def test_damaged_bytes_are_read_again(stub: Stub, store: Store) -> None:
    """A body whose checksum header disagrees: the library compares at its end, and we start over."""
    stub.faults = [lambda h: h.answer(200, b"abd", **{"x-amz-checksum-crc32": "NSRBwg=="})]
    stub.objects["/b/p/k"] = b"abc"
    assert store.get("k") == b"abc"
    stub.faults = [lambda h: h.answer(200, b"abd", **{"x-amz-checksum-crc32": "NSRBwg=="})] * ATTEMPTS
    with pytest.raises(CorruptInput, match="checksum"):
        store.get("k")


def test_a_store_that_ignores_ranges(stub: Stub, store: Store) -> None:
    stub.faults = [lambda h: h.answer(200, DATA)] * 3
    assert store.get("k", 0, 10) == DATA[:10]
    with pytest.raises(CorruptInput, match="ignores Range"):
        store.get("k", 5, 10)


def test_limit_refuses_before_the_body(stub: Stub, store: Store) -> None:
    stub.faults = [cut(0, "stall")]
    began = time.monotonic()
    with pytest.raises(CorruptInput, match=f"found {len(DATA)} bytes, expected at most 1000"):
        store.get("k", limit=1000)
    assert time.monotonic() - began < OPTIONS.read_timeout_s


@pytest.mark.parametrize("size", [3, 6 * MIB])
def test_a_lost_reply_is_our_own_success(stub: Stub, store: Store, size: int) -> None:
    data = b"x" * size
    stub.faults = [lost_reply] if size < MIB else [None, None, None, lost_reply]
    assert store.put_once("new", data)
    assert stub.objects["/b/p/new"] == data and not stub.uploads


@pytest.mark.parametrize("size", [3, 6 * MIB])
def test_412_with_other_bytes_is_a_loss(stub: Stub, store: Store, size: int) -> None:
    data = b"x" * size
    for other in (b"y" * size, b"x" * (size - 1), data + b"x"):
        stub.objects["/b/p/new"] = other
        assert store.put_once("new", data) is False
        assert stub.objects["/b/p/new"] == other and not stub.uploads


def test_412_about_nothing_is_unavailable(stub: Stub, store: Store) -> None:
    stub.faults = [error(412, "PreconditionFailed")]
    with pytest.raises(StoreUnavailable, match="both that the key exists"):
        store.put_once("new", b"x")


def test_a_conflict_at_the_end_of_an_upload_starts_over(stub: Stub, store: Store) -> None:
    data = b"x" * (6 * MIB)
    stub.faults = [None, None, None, error(409, "ConditionalRequestConflict")]
    assert store.put_once("new", data)
    assert stub.objects["/b/p/new"] == data and not stub.uploads
    assert sum("uploads" in path for _, path, _ in stub.seen) == 2


def test_an_upload_swept_under_our_hands_starts_over(stub: Stub, store: Store) -> None:
    def sweep(handler: object) -> bool:
        stub.uploads.clear()
        return True

    data = b"x" * (6 * MIB)
    stub.faults = [None, None, None, sweep]
    assert store.put_once("new", data)
    assert stub.objects["/b/p/new"] == data and not stub.uploads


def test_parts_are_retried_one_by_one(stub: Stub, store: Store) -> None:
    data = random.Random(2).randbytes(11 * MIB)
    stub.faults = [SLOW_DOWN, None, reset, INTERNAL, None, stall, None, SLOW_DOWN, None, INTERNAL]
    assert store.put_once("new", data)
    assert stub.objects["/b/p/new"] == data
    parts = [path for method, path, _ in stub.seen if "partNumber" in path]
    assert len(parts) == 3 + 4


@pytest.mark.parametrize("fault", [error(400, "ExpiredToken"), error(403, "AccessDenied")])
def test_credentials_that_end_in_mid_upload(stub: Stub, store: Store, fault: Fault) -> None:
    stub.faults = [None, None, fault]
    with pytest.raises(StoreDenied):
        store.put_once("new", b"x" * (11 * MIB))
    assert "/b/p/new" not in stub.objects and not stub.uploads  # aborted: the stub still lets us


def test_a_part_that_never_arrives_aborts_the_upload(stub: Stub, store: Store) -> None:
    stub.faults = [None, None, *[INTERNAL] * ATTEMPTS]
    with pytest.raises(StoreUnavailable, match="InternalError"):
        store.put_once("new", b"x" * (11 * MIB))
    assert "/b/p/new" not in stub.objects and not stub.uploads
