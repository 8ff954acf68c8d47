"""Bodies that arrive in pieces, altered or not at all; puts that somebody else may have won; behind the fault proxy."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dcr_mpi.errors import CorruptInput, StoreUnavailable
from dcr_mpi.store import Stat
from tests.servers import BUCKET

from .bench import ATTEMPTS, DATA, MIB, Bench
from .faults import (
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
from .proxy import READS, Answer, Exchange, Rule

pytestmark = pytest.mark.s3
SLOW_DOWN, INTERNAL = PASSING["slow down"], PASSING["internal"]
ALWAYS = 1000


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
def test_a_bit_that_flips_on_reading_back_is_no_loss(bench: Bench, size: int) -> None:
    bench.proxy.script(Rule(lost_reply, "Put|Complete"), Rule(altered(flipped, trusted=False), "Get"))
    assert bench.store.put_once("new", b"x" * size)
    assert bench.proxy.rules[1].met


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
