"""Both ends of the direct relay on real connections: parts, cuts, other certificates and tokens, and guests."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dcr_mpi.direct import Inlet, Outlet, Reach, Serving, Unreachable, protocol
from dcr_mpi.direct.certificate import client_context
from dcr_mpi.direct.server import MAX_STRANGERS
from dcr_mpi.errors import CorruptInput, UsageError
from tests.direct.cutter import Cutter
from tests.direct.rig import LIMIT, Rig, made

SOON = Reach(connect_s=5, idle_s=5, retry_s=1, deadline_s=20)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.outlet.close()


@pytest.fixture
def inlet() -> Iterator[Inlet]:
    inlet = Inlet(SOON)
    yield inlet
    inlet.close()


def test_parts_come_as_they_are_built(rig: Rig, inlet: Inlet) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(inlet.fetch, rig.offer, k, None, LIMIT, 20.0) for k in range(4)]
        time.sleep(0.2)
        sent = [rig.put(k, 10 ** (k + 2)) for k in range(4)]
        got = [each.result() for each in asked]
    assert [data for _, data in got] == sent
    assert [entry for entry, _ in got] == [made(k, 10 ** (k + 2))[0] for k in range(4)]
    assert inlet.taken == rig.outlet.sent == sum(map(len, sent))


def test_memory_is_bounded_and_nothing_is_left_in_the_directory(tmp_path: Path, inlet: Inlet) -> None:
    rig = Rig(tmp_path, parts=8, hold_bytes=250_000)
    sent = []
    for k in range(8):
        sent.append(rig.put(k, 100_000))
        assert rig.outlet.shelf.held_bytes <= 250_000
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    assert [inlet.fetch(rig.offer, k, None, LIMIT, 0)[1] for k in range(8)] == sent
    rig.outlet.close()


def test_a_part_larger_than_what_is_held(tmp_path: Path, inlet: Inlet) -> None:
    rig = Rig(tmp_path, hold_bytes=0)
    data = rig.put(0, 1_000_003)
    assert rig.outlet.shelf.held_bytes == 0
    assert inlet.fetch(rig.offer, 0, None, LIMIT, 0)[1] == data
    rig.outlet.close()


@pytest.mark.parametrize("after", [[0], [1], [700], [400_000], [400_000, 300_000, 1000, 200_000]])
def test_a_cut_connection_goes_on_where_it_was(rig: Rig, inlet: Inlet, after: list[int]) -> None:
    """No byte that arrived is sent again: what went through the proxy is the part, and some handshakes."""
    size = 1_000_000
    data = rig.put(0, size)
    cutter = Cutter("127.0.0.1", rig.endpoint.port, after)
    assert inlet.fetch(rig.at(cutter.port), 0, None, LIMIT, 20)[1] == data
    cutter.close()
    assert len(cutter.down) == len(after) + 1
    # A record of TLS that was cut does not arrive: 16 KiB per cut, and 3 KiB per handshake.
    assert cutter.total < size + size // 500 + 24_000 * len(cutter.down)


def test_a_part_that_became_another_is_fetched_from_its_beginning(tmp_path: Path, inlet: Inlet) -> None:
    """The same port and certificate, other bytes: what arrived of the first is thrown away."""
    rig = Rig(tmp_path)
    rig.put(0, 1_000_000)
    entry, other = made(7, 900_000)
    cutter = Cutter("127.0.0.1", rig.endpoint.port, [500_000])
    fetched = threading.Thread(
        target=lambda: got.append(inlet.fetch(rig.at(cutter.port), 0, None, LIMIT, 20)[1]), daemon=True
    )
    got: list[bytes] = []
    change = dataclasses.replace(entry, index=0)
    original = inlet._ask

    def ask(*args: object) -> None:
        try:
            original(*args)  # type: ignore[arg-type]
        finally:
            rig.outlet.put(change, other)

    inlet._ask = ask  # type: ignore[method-assign,assignment]
    fetched.start()
    fetched.join(30)
    assert got == [other]
    cutter.close()
    rig.outlet.close()


def test_a_publisher_that_is_gone_is_given_up_soon(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 1000)
    rig.outlet.close()
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="refused"):
        inlet.fetch(rig.offer, 0, None, LIMIT, 60)
    assert time.monotonic() - begun < 5
    assert not inlet.answers(rig.offer)


def test_a_publisher_that_dies_in_the_middle_of_a_part(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 2_000_000)
    cutter = Cutter("127.0.0.1", rig.endpoint.port, [600_000] + [0] * 1000)
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=str(cutter.port)):
        inlet.fetch(rig.at(cutter.port), 0, None, LIMIT, 60)
    assert time.monotonic() - begun < 10
    assert cutter.total == 600_000
    cutter.close()


def test_a_part_that_is_not_built_is_waited_for_as_long_as_told(rig: Rig, inlet: Inlet) -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="not built yet"):
        inlet.fetch(rig.offer, 0, None, LIMIT, 1.5)
    assert 1.5 <= time.monotonic() - begun < 5


def test_who_closes_ends_a_fetch_under_way(rig: Rig) -> None:
    inlet = Inlet(dataclasses.replace(SOON, retry_s=100))
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(inlet.fetch, rig.offer, 0, None, LIMIT, 100.0)
        time.sleep(0.3)
        inlet.close()
        with pytest.raises(Unreachable):
            fetching.result(10)


def test_a_part_of_another_rank_is_refused(rig: Rig, inlet: Inlet) -> None:
    offer = dataclasses.replace(rig.offer, owners=(0,) * 10)
    with pytest.raises(Unreachable, match="part 9 is not built here"):
        inlet.fetch(offer, 9, None, LIMIT, 5)


def test_other_content_than_was_sealed_is_not_taken(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 1000)
    with pytest.raises(Unreachable, match="other content"):
        inlet.fetch(rig.offer, 0, "f" * 64, LIMIT, 5)


def test_a_part_larger_than_it_can_be_is_refused_before_there_is_room_for_it(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 1001)
    with pytest.raises(CorruptInput, match="found 1001 bytes, expected at most 1000"):
        inlet.fetch(rig.offer, 0, None, 1000, 5)


def test_bytes_that_are_not_the_entrys_are_fetched_again_once(rig: Rig, inlet: Inlet) -> None:
    entry, data = made(0, 50_000)
    rig.outlet.put(entry, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptInput, match="the second time too"):
        inlet.fetch(rig.offer, 0, None, LIMIT, 5)
    assert rig.outlet.sent == 100_000


# -- who is who ---------------------------------------------------------------------------------------------------


def test_another_certificate_never_sees_the_token(tmp_path: Path, rig: Rig, inlet: Inlet) -> None:
    """A process that took the port over; or somebody between the two."""
    seen: list[bytes] = []
    impostor = Rig(tmp_path)
    impostor.outlet._token = b""

    def hello(raw: bytes) -> bytes:
        seen.append(raw)
        return raw

    offer = rig.at(impostor.endpoint.port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "unpack_hello", hello)
        with pytest.raises(Unreachable, match="another certificate"):
            inlet.fetch(offer, 0, None, LIMIT, 5)
        assert not inlet.answers(offer)
        time.sleep(0.2)
    assert seen == []
    impostor.outlet.close()


def test_another_token_gets_nothing(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 1000)
    offer = dataclasses.replace(rig.offer, token=os.urandom(32).hex())
    assert not inlet.answers(offer)
    with pytest.raises(Unreachable):
        inlet.fetch(offer, 0, None, LIMIT, 1)
    assert rig.outlet.sent == 0


def test_two_sites_get_each_part_once(rig: Rig) -> None:
    sites = [Inlet(SOON), Inlet(SOON)]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(site.fetch, rig.offer, k, None, LIMIT, 20.0) for site in sites for k in range(4)]
        sent = [rig.put(k, 50_000 + k) for k in range(4)]
        assert [each.result()[1] for each in asked] == sent + sent
    assert rig.outlet.sent == 2 * sum(map(len, sent))
    for site in sites:
        site.close()


# -- guests of the server -----------------------------------------------------------------------------------------


def _connect(rig: Rig) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", rig.endpoint.port), timeout=10)
    return client_context().wrap_socket(raw)


def _is_closed(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except OSError:
        return True


@pytest.mark.parametrize(
    "garbage", [b"\0" * 100, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70_000]
)
def test_what_is_no_tls_is_hung_up_on(rig: Rig, inlet: Inlet, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", rig.endpoint.port), timeout=10) as link:
        try:
            link.sendall(garbage)
            while link.recv(4096):
                pass
        except OSError:
            pass
    assert inlet.answers(rig.offer)


@pytest.mark.parametrize("hello", [b"x" * 40, b"dcr-dir1" + b"\0" * 32, b"dcr-dir0" + b"\0" * 32, b"\xff" * 100_000])
def test_a_hello_of_nobody_is_hung_up_on_without_a_word(rig: Rig, inlet: Inlet, hello: bytes) -> None:
    with _connect(rig) as link:
        with suppress(OSError):
            link.sendall(hello)
        assert _is_closed(link)
    assert inlet.answers(rig.offer)


@pytest.mark.parametrize("request_", [b"x" * 48, b"PART" + b"\xff" * 44, protocol.pack_request(protocol.Request(77))])
def test_a_request_that_is_none_ends_that_connection_alone(rig: Rig, inlet: Inlet, request_: bytes) -> None:
    data = rig.put(0, 1000)
    with _connect(rig) as link:
        link.sendall(protocol.pack_hello(rig.token))
        assert link.recv(protocol.HEAD_BYTES) == protocol.pack_frame(protocol.READY)
        link.sendall(request_)
        rest = b""
        try:
            while more := link.recv(4096):
                rest += more
        except OSError:
            pass
        assert len(rest) < 600
    assert inlet.fetch(rig.offer, 0, None, LIMIT, 5)[1] == data


def test_an_offset_past_the_end_is_the_beginning(rig: Rig) -> None:
    data = rig.put(0, 1000)
    with _connect(rig) as link:
        link.sendall(protocol.pack_hello(rig.token))
        link.recv(protocol.HEAD_BYTES)
        link.sendall(protocol.pack_request(protocol.Request(0, 1 << 63, bytes.fromhex(made(0, 1000)[0].sha256))))
        rest = b""
        while len(rest) < 1000:
            rest += link.recv(4096)
    assert rest.endswith(data)


def test_who_drips_has_a_few_seconds_in_all(tmp_path: Path) -> None:
    """A byte now and then renews nothing; the handshake counts too."""
    rig = Rig(tmp_path, hello_s=1.0)
    begun = time.monotonic()
    with _connect(rig) as link:
        try:
            for byte in protocol.pack_hello(rig.token):
                link.sendall(bytes([byte]))
                time.sleep(0.1)
        except OSError:
            pass
        assert _is_closed(link)
    assert time.monotonic() - begun < 3
    with socket.create_connection(("127.0.0.1", rig.endpoint.port), timeout=10) as silent:
        begun = time.monotonic()
        assert _is_closed(silent)
        assert time.monotonic() - begun < 3
    rig.outlet.close()


def test_strangers_are_few_and_members_get_in_when_they_are_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hello_s=2.0)
    data = rig.put(0, 1000)
    strangers = [
        socket.create_connection(("127.0.0.1", rig.endpoint.port), timeout=10) for _ in range(MAX_STRANGERS + 9)
    ]
    time.sleep(0.3)
    assert rig.outlet._strangers <= MAX_STRANGERS
    inlet = Inlet(dataclasses.replace(SOON, retry_s=20))
    assert inlet.fetch(rig.offer, 0, None, LIMIT, 20)[1] == data
    for link in strangers:
        link.close()
    inlet.close()
    rig.outlet.close()


def test_connections_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, connections=2)
    data = rig.put(0, 1000)
    first, second, third = Inlet(SOON), Inlet(SOON), Inlet(SOON)
    assert first.answers(rig.offer) and second.answers(rig.offer)
    assert not third.answers(rig.offer)
    first.close()
    assert third.fetch(rig.offer, 0, None, LIMIT, 10)[1] == data
    second.close()
    third.close()
    rig.outlet.close()


def test_a_client_that_reads_nothing_is_let_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path, idle_s=1.0)
    rig.put(0, 30_000_000)
    with _connect(rig) as link:
        link.sendall(protocol.pack_hello(rig.token))
        link.recv(protocol.HEAD_BYTES)
        link.sendall(protocol.pack_request(protocol.Request(0)))
        for _ in range(100):
            if not rig.outlet._links:
                break
            time.sleep(0.1)
        assert not rig.outlet._links
    rig.outlet.close()


# -- where it listens ---------------------------------------------------------------------------------------------


def test_ports_of_a_range_until_there_is_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outlet = Outlet(Serving("127.0.0.1", ports=(port, port), spool=tmp_path))
        with pytest.raises(UsageError, match=r"ports \d+ to \d+.*direct.ports"):
            outlet.begin(1, bytes(32), [0])
    assert outlet.begin(1, bytes(32), [0]).port == port
    outlet.close()


def test_what_sites_are_told(tmp_path: Path) -> None:
    here = socket.gethostname()
    for listen, advertise, host in [
        ("127.0.0.1", None, "127.0.0.1"),
        ("lo", None, "127.0.0.1"),
        ("0.0.0.0", None, here),
        ("127.0.0.1", "gate.example", "gate.example"),
        ("lo", "{host}.cluster.example", f"{here}.cluster.example"),
    ]:
        outlet = Outlet(Serving(listen, advertise, spool=tmp_path))
        assert outlet.begin(1, bytes(32), [0]).host == host
        outlet.close()


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1.*direct\.listen"):
        Outlet(Serving("192.0.2.1", spool=tmp_path)).begin(1, bytes(32), [0])


def test_an_outlet_goes_from_version_to_version(rig: Rig, inlet: Inlet) -> None:
    rig.put(0, 1000)
    assert inlet.fetch(rig.offer, 0, None, LIMIT, 5)
    token = os.urandom(32)
    endpoint = rig.outlet.begin(4, token, [0])
    assert not inlet.answers(rig.offer)
    data = rig.put(0, 2000)
    offer = dataclasses.replace(rig.offer, version=4, token=token.hex(), endpoints=(endpoint,))
    assert inlet.fetch(offer, 0, None, LIMIT, 5)[1] == data
