"""What dcr doctor says of a store: a real one, and each way in which it, its clock or the way to it can be wrong."""

from __future__ import annotations

import email.utils
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcr_mpi.cli.doctor.finding import Finding, guarded
from dcr_mpi.cli.doctor.remote import Probe, quick
from dcr_mpi.config import Config, load
from dcr_mpi.store import S3Options, open_store
from tests.servers import S3Server, make_certificates
from tests.store.conftest import Place, use_credentials
from tests.store.faults import error, hidden, reset
from tests.store.proxy import Answer, Exchange, Proxy, Rule

pytestmark = pytest.mark.s3


@pytest.fixture
def config(s3_server: S3Server, proxy: Proxy, s3_url: str) -> Callable[..., Config]:
    """A configuration of a fresh prefix behind the proxy; keyword arguments override ``store.s3``."""

    def make(url: str = s3_url, **s3: object) -> Config:
        settings = {"endpoint": proxy.endpoint, "backoff_s": 0.01, "read_timeout_s": 2, **s3}
        keys = {f"store.s3.{name}": str(value) for name, value in settings.items()}
        return load(None, {"policy": "p", "store.url": url, **keys})

    return make


def findings(config: Config) -> list[Finding]:
    probe = Probe(config)
    return [*guarded("store", probe.look), *guarded("store", probe.tidy)]


def only(config: Config, level: str) -> Finding:
    """The one finding that is not good."""
    (found,) = [f for f in findings(config) if f.level != "ok"]
    assert found.level == level and found.remedy and found.expected
    return found


def test_a_store_that_keeps_its_word(config: Callable[..., Config], proxy: Proxy) -> None:
    found = findings(config())
    assert [(f.check, f.level) for f in found] == [("store", "ok"), ("clock", "ok")]
    assert proxy.count("PutObject") == 2 and proxy.count("DELETE") == 1
    where = config()
    assert list(open_store(where.store.url, where.store.s3).walk("")) == [], "nothing is left"


def test_credentials_bucket_and_server(
    config: Callable[..., Config], proxy: Proxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = only(config(url="s3://no-such-bucket/x"), "fail")
    assert found.code == 21 and "bucket" in found.remedy
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = only(config(), "fail")
    assert found.code == 21 and "AWS_SECRET_ACCESS_KEY" in found.remedy
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = only(config(), "fail")
    assert found.code == 21 and "AWS_ACCESS_KEY_ID" in found.remedy
    monkeypatch.undo()
    use_credentials(monkeypatch, s3_server.env())
    proxy.script(Rule(reset, times=1000))
    begun = time.monotonic()
    found = only(config(), "fail")
    assert found.code == 20 and time.monotonic() - begun < 20 and proxy.count() == 2, "told soon, after two tries"
    assert only(config(endpoint="http://10.255.255.1"), "fail").code == 2, "without TLS"


def test_a_store_that_puts_over_what_is_there(config: Callable[..., Config], proxy: Proxy) -> None:
    def swallowed(exchange: Exchange) -> None:
        """What a server says that does not know If-None-Match."""
        exchange.body()
        exchange.answer(Answer(200, [("Date", exchange.date_time_string()), ("ETag", '"0"')], b""))

    proxy.script(Rule(swallowed, "PutObject", skip=1))
    found = only(config(), "fail")
    assert found.code == 21 and "put over" in found.found and "conditional" in found.remedy


def test_a_store_that_shows_objects_late(config: Callable[..., Config], proxy: Proxy) -> None:
    proxy.script(Rule(hidden, "GetObject", skip=1, times=9))
    assert only(config(), "fail").code == 20
    proxy.script(Rule(hidden, "GetObject|HeadObject", times=9))
    assert only(config(), "fail").code == 20


def test_an_account_that_may_not_delete(config: Callable[..., Config], proxy: Proxy) -> None:
    proxy.script(Rule(error(403, "AccessDenied"), "DELETE"))
    assert "dcr gc" in only(config(), "warn").remedy
    where = config()
    (left,) = open_store(where.store.url, where.store.s3).walk("")
    assert left.key.startswith("p/doctor/") and left.size == 5


@pytest.mark.parametrize(("ahead", "level"), [(-7200, "fail"), (-20, "warn"), (30, "warn")])
def test_a_clock_that_is_wrong(config: Callable[..., Config], proxy: Proxy, ahead: float, level: str) -> None:
    def shifted(exchange: Exchange) -> None:
        answer = exchange.ask()
        kept = [(n, v) for n, v in answer.headers if n.lower() != "date"]
        date = email.utils.formatdate(time.time() + ahead, usegmt=True)
        exchange.answer(Answer(answer.status, [*kept, ("Date", date)], answer.body))

    proxy.script(Rule(shifted, times=1000))
    found = only(config(), level)
    assert found.check == "clock" and ("ahead" if ahead > 0 else "behind") in found.found
    assert "NTP" in found.remedy and found.code == (21 if level == "fail" else 0)


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[S3Server, Path]]:
    made = make_certificates(tmp_path)
    server = S3Server(tmp_path / "s3", cert=made.cert, key=made.key, ca=made.ca)
    try:
        yield server.start(), made.ca
    finally:
        server.kill()


def test_a_certificate_of_an_unknown_authority(
    tls_server: tuple[S3Server, Path], config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ca = tls_server
    use_credentials(monkeypatch, server.env())
    url = f"{server.url}/{secrets.token_hex(4)}"
    found = only(config(url=url, endpoint=server.endpoint), "fail")
    assert found.code == 21 and "ca_bundle" in found.remedy
    assert [f.level for f in findings(config(url=url, endpoint=server.endpoint, ca_bundle=ca))] == ["ok", "ok"]


def test_a_directory_that_is_not_there_is_not_made(config: Callable[..., Config], tmp_path: Path) -> None:
    for url in (str(tmp_path / "store"), f"file://{tmp_path}/store"):
        assert only(config(url=url), "warn").check == "store"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    assert [f.level for f in findings(config(url=str(tmp_path / "store")))] == ["ok", "ok"]
    assert list((tmp_path / "store").iterdir()) == []


def test_patience_is_only_ever_shortened() -> None:
    assert quick(S3Options(attempts=1, deadline_s=3)).attempts == 1 and quick(S3Options(deadline_s=3)).deadline_s == 3
    short = quick(S3Options())
    assert (short.attempts, short.deadline_s, short.read_timeout_s) == (2, 20.0, 10.0)


def test_the_stores_clock(place: Place) -> None:
    """Of both kinds of store: this machine's own, to about a second."""
    store = place.open()
    store.put_once("k", b"x")
    assert abs(store.ahead_s("k")) < 2 and store.get("k") == b"x"
