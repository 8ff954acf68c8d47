"""Random sequences of faults against random operations: right bytes, or an error of the right class, never a lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dcr_mpi.errors import CorruptInput, DcrError, StoreUnavailable, by_code
from dcr_mpi.store import Stat
from tests.servers import S3Server

from .bench import ATTEMPTS, Bench
from .conftest import use_credentials
from .faults import FINAL, LONG, PASSING, TIMEOUT_S, altered, halved, hidden
from .proxy import Proxy, Rule

pytestmark = [pytest.mark.s3, pytest.mark.timeout(600)]
T = TypeVar("T")
MIB = 1 << 20
BRIEF = sorted(set(PASSING) - LONG)
DEADLINE_S = 6.0
# A request that is under way at the deadline ends by its own time-outs: for sending, for the answer, for its abort.
BOUND_S = DEADLINE_S + 8 * TIMEOUT_S

faults = st.lists(
    st.one_of(st.none(), st.none(), st.sampled_from(BRIEF), st.sampled_from([*sorted(FINAL), *sorted(LONG), "hidden"])),
    max_size=10,
)
sizes = st.sampled_from([0, 1, 1000, 300_000, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1])


@pytest.fixture(scope="module")
def bench(s3_server: S3Server) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        use_credentials(patch, s3_server.env())
        proxy = Proxy(s3_server.endpoint)
        made = Bench(s3_server, proxy)
        yield made
        made.client.close()
        proxy.close()


def script(bench: Bench, names: list[str | None]) -> set[type[DcrError]]:
    """The n-th request meets the n-th fault; the classes that an error may then have."""
    known = {**PASSING, **{name: fault for name, (fault, _) in FINAL.items()}, "hidden": hidden}
    bench.proxy.script(*[Rule(known[name], skip=n) for n, name in enumerate(names) if name])
    allowed = {by_code(FINAL[name][1]) for name in names if name in FINAL}
    if len([name for name in names if name]) >= ATTEMPTS:
        allowed |= {StoreUnavailable, CorruptInput}  # used up; a body that always ends early is corrupt
    if set(names) & (LONG | {"hidden"}):
        allowed.add(StoreUnavailable)
    return allowed


def outcome(call: Callable[[], T]) -> tuple[T | None, DcrError | None]:
    """What came of a call: its value, or its error."""
    try:
        return call(), None
    except DcrError as error:
        return None, error


quiet = settings(  # each example is several requests, some of which are waited for
    max_examples=max(20, (settings.default or settings()).max_examples // 2),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quiet
@example(names=["lost reply", None, None, "bit flipped on the way"], size=1, rival=None)
@given(names=faults, size=sizes, rival=st.sampled_from([None, None, "same", "other", "shorter"]))
def test_put(bench: Bench, names: list[str | None], size: int, rival: str | None) -> None:
    key, data = bench.fresh(), bench.some(size)
    standing = {"same": data, "other": bytes(size), "shorter": data[: size // 2]}.get(rival or "")
    if standing is not None:
        bench.replace(key, standing)
    allowed, began = script(bench, names), time.monotonic()
    won, error = outcome(lambda: bench.open(deadline_s=DEADLINE_S).put_once(key, data))
    there = bench.holds(key)
    if error is not None:
        assert type(error) in allowed, (error, names)
        assert there in (standing, data if standing is None else standing), "absent or whole"
    else:
        assert there == (data if standing is None else standing)
        assert won == (there == data)
    assert time.monotonic() - began < BOUND_S
    bench.proxy.script()
    assert bench.store.put_once(key, data) == (standing is None or standing == data), "and again, undisturbed"
    assert bench.holds(key) == (data if standing is None else standing)


@quiet
@given(names=faults, start=st.integers(0, 300_001), length=st.none() | st.integers(0, 300_001), absent=st.booleans())
def test_get_and_stat(bench: Bench, names: list[str | None], start: int, length: int | None, absent: bool) -> None:
    whole = start == 0 and length is None
    if not whole:
        names = [name for name in names if name != "bit flipped on the way"]  # ranges have no checksum in S3
    key, data = ("absent", None) if absent else ("k300", bench.ensure("k300", 300_000))
    stop = None if length is None else start + length
    expected = b"" if start == stop else None if data is None else data[start:stop]
    began = time.monotonic()
    for call, want in ((lambda s: s.get(key, start, stop), expected), (lambda s: s.stat(key), data and Stat(300_000))):
        allowed = script(bench, names)
        found, error = outcome(lambda call=call: call(bench.open(deadline_s=DEADLINE_S)))  # type: ignore[misc]
        if error is not None:
            assert type(error) in allowed, (error, names)
        else:
            assert found == want or (found is None and "hidden" in names), names
    assert time.monotonic() - began < 2 * BOUND_S


@quiet
@given(names=faults, change=st.sampled_from([halved, lambda body: body + b"x", lambda body: body[::-1]]))
def test_a_whole_get_never_grows_or_shrinks_past_its_checksum(bench: Bench, names, change) -> None:  # type: ignore[no-untyped-def]
    """Other bytes of a length that the headers confirm, once, beside other faults: the checksum tells."""
    data = bench.ensure("k300", 300_000)
    allowed = script(bench, names)
    bench.proxy.rules.append(Rule(altered(change, trusted=False), skip=1))
    found, error = outcome(lambda: bench.open(deadline_s=DEADLINE_S).get("k300"))
    if error is not None:
        assert type(error) in allowed | {CorruptInput, StoreUnavailable}, (error, names)
    else:
        assert found == data or (found is None and "hidden" in names), names
