"""One fault at a time between the store and a real server: right outcome, right class, bounded time."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from dcr_mpi.errors import DcrError, ResourceError, StoreDenied, StoreUnavailable
from dcr_mpi.store import Stat

from .bench import ATTEMPTS, DATA, MIB, Bench
from .conftest import use_credentials
from .faults import (
    FINAL,
    LONG,
    PASSING,
    error,
)
from .proxy import Rule

pytestmark = pytest.mark.s3
SLOW_DOWN, INTERNAL = PASSING["slow down"], PASSING["internal"]
ALWAYS = 1000


# -- what passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_retried(bench: Bench, name: str) -> None:
    times = 1 if name in LONG else ATTEMPTS - 1
    bench.proxy.script(Rule(PASSING[name], times=times))
    assert bench.store.put_once("new", b"abc")
    assert bench.holds("new") == b"abc"
    bench.proxy.script(Rule(PASSING[name], times=times))
    assert bench.store.get("k") == DATA
    assert bench.proxy.rules[0].met
    bench.proxy.script(Rule(PASSING[name], times=times))
    part = bench.store.get("k", 1000, 2 * MIB)
    assert part == DATA[1000 : 2 * MIB] or name == "bit flipped on the way"  # S3 has checksums of whole objects only
    bench.proxy.script(Rule(PASSING[name], times=times))
    assert bench.store.get("absent") is None  # the answer that says so may be cut as well
    bench.proxy.script(Rule(PASSING[name]))
    assert bench.store.stat("new") == Stat(3)


THRESHOLD = 5 * MIB
AROUND = [
    pytest.param(name, size, marks=[pytest.mark.slow] if size <= THRESHOLD or name in LONG else [])
    for name in PASSING
    for size in (THRESHOLD - 1, THRESHOLD, THRESHOLD + 1)
]


@pytest.mark.parametrize(("name", "size"), AROUND)
def test_each_request_of_an_upload_may_fail_once(bench: Bench, name: str, size: int) -> None:
    """Around the threshold: one PUT, an upload of one part, one of two; the fault meets each request in turn."""
    data = random.Random(size).randbytes(size)
    for nth in range(20):
        bench.proxy.script(Rule(PASSING[name], skip=nth))
        assert bench.store.put_once(f"new-{nth}", data)
        assert bench.holds(f"new-{nth}") == data
        if not bench.proxy.rules[0].met:
            break
    assert nth == {THRESHOLD - 1: 1, THRESHOLD: 3, THRESHOLD + 1: 4}[size], "every request had its turn"
    assert bench.store.sweep("", 0) <= 1, "at most the upload whose beginning was not heard of"
    assert not bench.uploads()


@pytest.mark.parametrize("name", [name for name in PASSING if not name.startswith("upload")])
def test_a_listing_is_whole_or_fails(bench: Bench, name: str) -> None:
    """The collector deletes by what a listing shows: one that is cut short must not pass for a short one."""
    bench.proxy.script(Rule(PASSING[name]))
    assert [entry.key for entry in bench.store.walk("")] == ["k"]
    assert bench.proxy.rules[0].met


@pytest.mark.parametrize("name", ["slow down", "internal", "gateway", "reset", "hang up", "conflict", "stall"])
def test_what_does_not_pass_ends_bounded(bench: Bench, name: str) -> None:
    bench.proxy.script(Rule(PASSING[name], times=ALWAYS))
    with pytest.raises(StoreUnavailable, match=rf"put s3://.*/new: gave up after {ATTEMPTS} attempts in .*: found .+"):
        bench.store.put_once("new", b"abc")
    assert len(bench.proxy.seen) == ATTEMPTS
    assert bench.holds("new") is None
    with pytest.raises(StoreUnavailable, match=rf"get s3://.*/k: gave up after {ATTEMPTS} attempts"):
        bench.store.get("k")
    assert len(bench.proxy.seen) == 2 * ATTEMPTS  # no other layer retries


def test_the_deadline_bounds_it_too(bench: Bench) -> None:
    bench.proxy.script(Rule(SLOW_DOWN, times=ALWAYS))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="gave up after"):
        bench.open(attempts=1000, backoff_s=0.2, deadline_s=1.0).get("k")
    assert time.monotonic() - began < 3


def test_a_storm_is_ridden_out(bench: Bench) -> None:
    """Every second answer is a 503, for parts, their ends and reads alike."""
    data = random.Random(2).randbytes(11 * MIB)
    bench.proxy.script(*[Rule(SLOW_DOWN, skip=n) for n in range(0, 40, 2)])
    assert bench.store.put_once("new", data)
    assert bench.store.get("new") == data
    assert bench.store.stat("new") == Stat(len(data))
    assert bench.proxy.count("UploadPart") == 6, "parts are retried one by one"


def test_retry_after_is_honoured(bench: Bench) -> None:
    bench.proxy.script(Rule(error(503, "SlowDown", Retry_After="1")))
    began = time.monotonic()
    assert bench.store.stat("k") == Stat(len(DATA))
    assert time.monotonic() - began >= 1
    bench.proxy.script(Rule(error(503, "SlowDown", Retry_After="3600")))
    with pytest.raises(StoreUnavailable, match="gave up after 1 attempt in"):  # over the deadline: no use waiting
        bench.store.stat("k")


# -- what is final ------------------------------------------------------------------------------------------------

DENIED = {
    "permission": (403, "AccessDenied", "docs/store.md"), "key": (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
    "secret": (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"), "expired": (400, "ExpiredToken", "expired"),
    "clock": (403, "RequestTimeTooSkewed", "clock is wrong"), "bucket": (404, "NoSuchBucket", "bucket does not exist"),
    "region": (400, "AuthorizationHeaderMalformed", "region"), "moved": (301, "PermanentRedirect", "region"),
    "lacking": (501, "NotImplemented", "If-None-Match"), "no S3": (404, "", "path_style"),
    "checksum": (400, "InvalidRequest", "when_required"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "code", "says"), DENIED.values(), ids=DENIED)
def test_refusals_are_final_and_say_why(bench: Bench, status: int, code: str, says: str) -> None:
    fault = error(status, code)
    for call in (
        lambda: bench.store.put_once("new", b""),
        lambda: bench.store.get("k"),
        lambda: bench.store.sweep("", 0),
    ):
        bench.proxy.script(Rule(fault, times=3))
        with pytest.raises(StoreDenied, match=says):
            call()
        assert len(bench.proxy.seen) <= (4 if status == 301 else 1)  # botocore itself looks for the bucket's region
    bench.proxy.script(Rule(fault, times=3))  # HEAD has no body: the reason takes a second question
    with pytest.raises(StoreDenied, match=says):
        bench.open().stat("k")


@pytest.mark.parametrize("name", FINAL)
@pytest.mark.parametrize("nth", range(4))
def test_what_is_final_in_mid_upload(bench: Bench, name: str, nth: int) -> None:
    """Create, two parts, complete: nothing is visible, no upload stays, and the next try ends well."""
    fault, code = FINAL[name]
    data = random.Random(3).randbytes(THRESHOLD + 1)
    bench.proxy.script(Rule(fault, skip=nth))
    with pytest.raises(DcrError) as caught:
        bench.store.put_once("new", data)
    assert caught.value.code == code
    assert bench.holds("new") is None and not bench.uploads()
    assert bench.store.put_once("new", data) and bench.holds("new") == data


def test_credentials_that_end_for_good_in_mid_upload(bench: Bench) -> None:
    """The abort is refused as well: the upload stays invisible, and a sweep with new credentials drops it."""
    bench.proxy.script(Rule(FINAL["expired token"][0], skip=2, times=ALWAYS))
    with pytest.raises(StoreDenied, match="session token has expired"):
        bench.store.put_once("new", b"x" * (11 * MIB))
    assert bench.proxy.count("UploadPart") <= 3, "the refusal is final: at most the next part had set out"
    bench.proxy.script()
    assert bench.store.stat("new") is None and len(bench.uploads()) == 1
    assert bench.store.sweep("", 3600) == 0 and bench.store.sweep("", 0) == 1
    assert not bench.uploads()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """Signed an hour off, for real: the server itself refuses; both clocks are shown."""
    from botocore import auth

    now = auth.get_current_datetime

    def wrong(*arguments: Any, **named: Any) -> datetime:
        return now(*arguments, **named) + timedelta(hours=hours)

    monkeypatch.setattr(auth, "get_current_datetime", wrong)
    for call in (
        lambda: bench.store.put_once("new", b""),
        lambda: bench.store.get("k"),
        lambda: bench.open().stat("k"),
    ):
        with pytest.raises(
            StoreDenied, match=r"RequestTimeTooSkewed.* the store says \w+, .* GMT, this machine \w+, .* GMT"
        ):
            call()


def test_a_full_store_is_a_resource(bench: Bench) -> None:
    bench.proxy.script(Rule(FINAL["store full"][0]))
    with pytest.raises(ResourceError, match="full"):
        bench.store.put_once("new", b"abc")


def test_missing_credentials_say_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    use_credentials(monkeypatch, {"AWS_EC2_METADATA_DISABLED": "true"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StoreDenied, match="set AWS_ACCESS_KEY_ID"):
        bench.open().get("k")
    assert not bench.proxy.seen


def test_nobody_listens(bench: Bench) -> None:
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError"):
        bench.open(endpoint="http://127.0.0.1:9").get("k")
