"""One fault at a time between the store and a real server: right outcome, right class, bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from dcr_mpi.errors import CorruptInput, DcrError, ResourceError, StoreDenied, StoreUnavailable
from dcr_mpi.store import Stat
from tests.servers import BUCKET, S3Server

from .bench import ATTEMPTS, Bench
from .conftest import use_credentials
from .faults import (
    FINAL,
    LONG,
    PASSING,
    TIMEOUT_S,
    altered,
    cut,
    error,
    flipped,
    hidden,
    invisible_for,
    lost_reply,
    reset,
    stall,
    then,
)
from .proxy import READS, Answer, Exchange, Proxy, Rule

pytestmark = pytest.mark.s3
MIB = 1 << 20
DATA = random.Random(1).randbytes(3 * MIB)
SLOW_DOWN, INTERNAL = PASSING["slow down"], PASSING["internal"]
ALWAYS = 1000


@pytest.fixture
def bench(s3_server: S3Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    use_credentials(monkeypatch, s3_server.env())
    made = Bench(s3_server, proxy)
    made.replace("k", DATA)
    yield made
    made.client.close()


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


# -- bodies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "stall"])
@pytest.mark.parametrize("at", [0, 1, 1000, MIB, MIB + 1, len(DATA) - 1])
def test_a_body_cut_short_is_resumed(bench: Bench, at: int, how: str) -> None:
    bench.proxy.script(Rule(cut(lambda n: at, how)))
    assert bench.store.get("k") == DATA
    bench.proxy.script(Rule(cut(lambda n: at // 2, how)))
    assert bench.store.get("k", 17, len(DATA) - 5) == DATA[17:-5]


def test_resuming_asks_only_for_the_rest_of_the_same_object(bench: Bench) -> None:
    bench.proxy.script(Rule(cut(lambda n: MIB + 5)), Rule(SLOW_DOWN, skip=1), Rule(cut(lambda n: MIB), skip=2))
    assert bench.store.get("k", 100) == DATA[100:]
    first, second, third, fourth = bench.proxy.seen
    assert not first.if_match and first.range == "bytes=100-"
    assert second.range == third.range and second.if_match == third.if_match == fourth.if_match != ""
    starts = [int(seen.range[6:-1]) for seen in (second, fourth)]
    assert 100 + MIB - 128 * 1024 < starts[0] <= 100 + MIB + 5 and starts[0] < starts[1] < len(DATA)


def test_progress_renews_the_attempts(bench: Bench) -> None:
    bench.proxy.script(Rule(cut(lambda n: 200 * 1024), times=14))  # more cuts than attempts, each brings something
    assert bench.store.get("k") == DATA
    assert bench.proxy.count() > ATTEMPTS


def test_a_body_that_stays_short_is_corrupt(bench: Bench) -> None:
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(cut(lambda n: 0), times=ALWAYS))
    with pytest.raises(CorruptInput, match=f"gave up after {ATTEMPTS} attempts .* early"):
        bench.store.get("k")
    assert bench.proxy.count() == 1 + ATTEMPTS
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(cut(lambda n: 0, "reset"), times=ALWAYS))
    with pytest.raises(StoreUnavailable, match="gave up"):  # the network's doing, not the object's
        bench.store.get("k")


def test_a_body_that_only_dribbles_ends_with_the_deadline(bench: Bench) -> None:
    """A byte now and then keeps every time-out of a socket quiet."""
    bench.proxy.script(Rule(cut(lambda n: MIB, "dribble"), times=ALWAYS))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=rf"found 10485\d\d of {len(DATA)} bytes when the time was up"):
        bench.open(deadline_s=2.0).get("k")
    assert time.monotonic() - began < 6


def test_another_object_on_resuming_is_corrupt(bench: Bench) -> None:
    bench.proxy.script(Rule(then(lambda: bench.replace("k", DATA[::-1]), reset), skip=1), Rule(cut(lambda n: MIB)))
    with pytest.raises(CorruptInput, match="another object"):
        bench.store.get("k")


def test_an_object_that_is_gone_on_resuming_is_no_absence(bench: Bench) -> None:
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(hidden, times=2))
    assert bench.store.get("k") == DATA
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(hidden, times=ALWAYS))
    with pytest.raises(StoreUnavailable, match="no such object any more"):
        bench.store.get("k")


def test_damaged_bytes_are_read_again(bench: Bench) -> None:
    """The server's own checksum header disagrees: the library compares at the end of the body, and we start over."""
    assert bench.store.put_once("c", b"abc")
    bench.proxy.script(Rule(altered(flipped, trusted=False), times=ATTEMPTS - 1))
    assert bench.store.get("c") == b"abc"
    bench.proxy.script(Rule(altered(flipped, trusted=False), times=ALWAYS))
    with pytest.raises(CorruptInput, match="checksum"):
        bench.store.get("c")


def test_damage_in_the_second_piece_is_found_too(bench: Bench) -> None:
    """A range has no checksum in S3; the whole, put together, has."""
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(altered(flipped, trusted=False), skip=1))
    assert bench.store.get("k") == DATA
    bench.proxy.script(Rule(cut(lambda n: MIB)), Rule(altered(flipped, trusted=False), skip=1, times=ALWAYS))
    with pytest.raises(CorruptInput, match="checksum"):
        bench.store.get("k")


def test_a_store_that_ignores_ranges(bench: Bench) -> None:
    bench.proxy.script(Rule(lambda exchange: exchange.answer(Answer(200, [], DATA)), times=3))
    assert bench.store.get("k", 0, 10) == DATA[:10]
    with pytest.raises(CorruptInput, match="ignores Range"):
        bench.store.get("k", 5, 10)


def test_limit_refuses_before_the_body(bench: Bench) -> None:
    bench.proxy.script(Rule(cut(lambda n: 0, "stall")))
    began = time.monotonic()
    with pytest.raises(CorruptInput, match=f"found {len(DATA)} bytes, expected at most 1000"):
        bench.store.get("k", limit=1000)
    assert time.monotonic() - began < TIMEOUT_S


def test_delayed_visibility_is_absence_for_a_while(bench: Bench) -> None:
    bench.proxy.script(Rule(invisible_for(0.3), READS, times=ALWAYS))
    assert bench.store.get("k") is None and bench.store.stat("k") is None
    time.sleep(0.4)
    assert bench.store.stat("k") == Stat(len(DATA)) and bench.store.get("k") == DATA


# -- who won ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 6 * MIB])
def test_a_lost_reply_is_our_own_success(bench: Bench, size: int) -> None:
    data = b"x" * size
    bench.proxy.script(Rule(lost_reply, "Put|Complete"))
    assert bench.store.put_once("new", data)
    assert bench.proxy.rules[0].met and bench.holds("new") == data and not bench.uploads()


@pytest.mark.parametrize("size", [3, 6 * MIB])
@pytest.mark.parametrize("fault", ["lost reply", "internal, though done", "late", "upload cut at its end", "reset"])
def test_a_lost_reply_where_somebody_else_has_won(bench: Bench, size: int, fault: str) -> None:
    bench.replace("new", b"y" * size)
    bench.proxy.script(Rule(PASSING[fault], "Put|Complete"))
    assert bench.store.put_once("new", b"x" * size) is False
    assert bench.holds("new") == b"y" * size and not bench.uploads()


@pytest.mark.parametrize("size", [3, 6 * MIB])
def test_412_with_other_bytes_is_a_loss(bench: Bench, size: int) -> None:
    data = b"x" * size
    for other in (b"y" * size, b"x" * (size - 1), data + b"x"):
        bench.replace("new", other)
        assert bench.store.put_once("new", data) is False
        assert bench.holds("new") == other and not bench.uploads()


def test_412_about_nothing(bench: Bench) -> None:
    """A winner that the store shows late is waited for within the bounds; one that stays away is no loss of ours."""
    bench.replace("new", b"x")
    bench.proxy.script(Rule(hidden, READS, times=2))
    assert bench.store.put_once("new", b"x")
    bench.proxy.script(Rule(error(412, "PreconditionFailed"), "Put", times=ALWAYS))
    with pytest.raises(StoreUnavailable, match="exists, says the put, and does not"):
        bench.store.put_once("other", b"x")
    assert bench.holds("other") is None


@pytest.mark.parametrize("fault", ["conflict", "damaged upload"], ids=["nobody landed", "the body was damaged"])
def test_an_end_of_an_upload_that_fails_is_tried_again(bench: Bench, fault: str) -> None:
    data = b"x" * (6 * MIB)
    bench.proxy.script(Rule(PASSING[fault], "Complete"))
    assert bench.store.put_once("new", data)
    assert bench.holds("new") == data and not bench.uploads()
    assert bench.proxy.count("Create") == (2 if fault == "conflict" else 1), "a conflict consumes the upload"


@pytest.mark.parametrize("where", ["UploadPart", "Complete"])
def test_an_upload_swept_under_our_hands_starts_over(bench: Bench, where: str) -> None:
    def sweep(exchange: Exchange) -> None:
        for upload in bench.uploads():
            bench.client.abort_multipart_upload(Bucket=BUCKET, **upload)
        exchange.answer(exchange.ask())

    data = b"x" * (6 * MIB)
    bench.proxy.script(Rule(sweep, where, skip=1 if where == "UploadPart" else 0))
    assert bench.store.put_once("new", data)
    assert bench.proxy.rules[0].met and bench.holds("new") == data and not bench.uploads()


@pytest.mark.parametrize("fault", [INTERNAL, stall], ids=["refused", "stalled"])
def test_a_part_that_never_arrives_aborts_the_upload(bench: Bench, fault: Callable[[Exchange], None]) -> None:
    bench.proxy.script(Rule(fault, "UploadPart", skip=1, times=ALWAYS))
    with pytest.raises(StoreUnavailable, match="gave up after"):
        bench.store.put_once("new", b"x" * (11 * MIB))
    assert bench.holds("new") is None and not bench.uploads()
