"""``HttpEndpoint`` and a real server on the loopback: answers, repeats, deaths, secrets, TLS."""

from __future__ import annotations

import http.client
import json
import pickle
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitBlocked, CommitFailed
from beadline.shared import retry as retrying
from beadline.sink import Outcome
from beadline.sinks.write_ahead import Delivery, HttpEndpoint, WriteAheadSink
from beadline.testing.suite.target import QUERY, epoch_id, pickled
from tests.unit.write_ahead_endpoints import SCHEMA, commit, prepare, rows
from tests.unit.write_ahead_shop import SECRET, Shop, serving, sink_to

FINE = {Outcome.COMMITTED}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


@pytest.mark.parametrize("form", ["lines", "array"])
def test_rows_arrive_with_their_ids_over_one_connection(
    shop: Shop, url: str, tmp_path: Path, form: Any
) -> None:
    endpoint = HttpEndpoint(f"{url}/orders?key=1", {"Authorization": SECRET}, form=form)
    sink = WriteAheadSink(endpoint, tmp_path / "wal", batch_rows=2, honours_ids=True)
    assert sink.default_name == "127.0.0.1-fc7d0552"
    assert commit(sink, 3, prepare(sink, 3, rows(1, 2, 3), rows(4))) == FINE
    start = f"suite~{'a' * 32}~under-test~3~"
    assert [id_.removeprefix(start) for id_, _ in shop.taken] == ["0~0", "0~1", "0~2", "1~0"]
    assert [row for _, row in shop.taken] == rows(1, 2, 3, 4)
    keys = [request["Idempotency-Key"].removeprefix(start) for request in shop.requests]
    assert keys == ["0~0+2", "0~2+1", "1~0+1"]
    assert {request["Authorization"] for request in shop.requests} == {SECRET}
    assert {request["path"] for request in shop.requests} == {"/orders?key=1"}
    assert len(shop.connections) == 1


def test_a_server_that_is_busy_for_a_while(shop: Shop, url: str, tmp_path: Path) -> None:
    shop.answers = [200, 503, 429, 500, 408, 204]
    sink = sink_to(url, tmp_path)
    assert commit(sink, 0, prepare(sink, 0, rows(1, 2, 3, 4, 5))) == FINE
    assert shop.numbers == [1, 2, 3, 4, 5]
    keys = [request["Idempotency-Key"].rpartition("~")[2] for request in shop.requests]
    assert keys == ["0+2", "2+2", "2+2", "2+2", "2+2", "2+2", "4+1"]


def test_a_server_that_stays_busy_is_unknown(shop: Shop, url: str, tmp_path: Path) -> None:
    shop.answers = [200] + [503] * 100
    sink = sink_to(url, tmp_path, timeout_s=0.3)
    parts = prepare(sink, 0, rows(1, 2, 3))
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "503 Service Unavailable" in result.detail
    assert "as I said" not in result.detail
    shop.answers = []
    assert commit(sink, 0, parts) == FINE
    assert shop.numbers == [1, 2, 3]


@pytest.mark.parametrize("honours_ids", [True, False])
def test_an_answer_that_is_lost(tmp_path: Path, honours_ids: bool) -> None:
    """The rows are there, and nobody was told: they come again, and are dropped by id, or not."""
    shop = Shop(honours_ids, answers=[200, "lost"])
    with serving(shop) as url:
        sink = sink_to(url, tmp_path, honours_ids=honours_ids)
        assert commit(sink, 0, prepare(sink, 0, rows(1, 2, 3, 4, 5))) == FINE
    assert shop.numbers == ([1, 2, 3, 4, 5] if honours_ids else [1, 2, 3, 4, 3, 4, 5])


def test_a_server_that_is_down_and_comes_back(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "NO_ANSWER_S", 0.2)
    with serving(shop) as url:
        sink = sink_to(url, tmp_path, timeout_s=0.2, honours_ids=True)
        parts = prepare(sink, 0, rows(1, 2, 3, 4, 5))
        shop.answers = [200] + [503] * 100
        assert commit(sink, 0, parts) == {Outcome.UNKNOWN}
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "ConnectionRefusedError" in result.detail
    with pytest.raises(BadSink, match=r"http.* cannot be reached"):
        sink.check(SCHEMA, QUERY)
    shop.answers = []
    with serving(shop, port=int(url.rpartition(":")[2])):
        sink.check(SCHEMA, QUERY)
        assert commit(sink, 0, parts) == FINE
        assert commit(sink, 0, parts) == {Outcome.ALREADY_COMMITTED}
    assert shop.numbers == [1, 2, 3, 4, 5]


def test_a_start_waits_a_moment_for_a_server_that_is_starting(shop: Shop, tmp_path: Path) -> None:
    with serving(shop) as url:
        sink = sink_to(url, tmp_path)
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(sink.check(SCHEMA, QUERY)))
    thread.start()
    thread.join(0.3)
    with serving(shop, port=int(url.rpartition(":")[2])):
        thread.join(20)
    assert len(told) == 1
    assert shop.requests == []


def test_a_server_that_comes_back_while_the_batch_is_tried_again(
    shop: Shop, tmp_path: Path
) -> None:
    with serving(shop) as url:
        pass
    sink = sink_to(url, tmp_path, timeout_s=30)
    parts = prepare(sink, 0, rows(1, 2, 3))
    told: list[set[Outcome]] = []
    thread = threading.Thread(target=lambda: told.append(commit(sink, 0, parts)))
    thread.start()
    thread.join(0.3)
    with serving(shop, port=int(url.rpartition(":")[2])):
        thread.join(20)
    assert told == [FINE]
    assert shop.numbers == [1, 2, 3]


def test_409_is_tried_again_whoever_honours_ids(shop: Shop, url: str, tmp_path: Path) -> None:
    """It may say that the first request is under way, which may still fail: no row is given up."""
    shop.answers = [409, 409]
    sink = sink_to(url, tmp_path, honours_ids=True)
    assert commit(sink, 0, prepare(sink, 0, rows(1, 2, 3))) == FINE
    assert shop.numbers == [1, 2, 3]
    shop.answers = [409] * 100
    stubborn = sink_to(url, tmp_path, honours_ids=True, timeout_s=0.2)
    result = stubborn.commit(epoch_id(1), prepare(stubborn, 1, rows(4)))
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "409 Conflict" in result.detail
    assert "already_taken_status=409" in result.detail


def test_409_is_a_success_where_the_setting_says_so(shop: Shop, url: str, tmp_path: Path) -> None:
    endpoint = HttpEndpoint(f"{url}/orders", already_taken_status=409)
    sink = WriteAheadSink(endpoint, tmp_path / "wal", "shop", batch_rows=2)
    parts = prepare(sink, 0, rows(1, 2, 3))
    shop.answers = [409]
    with pytest.raises(CommitFailed, match=r"409 Conflict.*honours_ids=True"):
        commit(sink, 0, parts)
    shop.answers = [409]
    assert commit(replace(sink, honours_ids=True), 0, parts) == FINE
    assert shop.numbers == [3]


@pytest.mark.parametrize("status", [200, 408, 429, 500, "409"])
def test_a_status_that_cannot_say_already_taken(status: Any) -> None:
    with pytest.raises(BadSink, match="already_taken_status"):
        HttpEndpoint("http://shop/", already_taken_status=status)


def test_the_next_call_respects_retry_after_too(shop: Shop, url: str, tmp_path: Path) -> None:
    shop.answers, shop.retry_after = [200, 429], "2"
    sink = sink_to(url, tmp_path, timeout_s=0.2)
    parts = prepare(sink, 0, rows(1, 2, 3))
    began = time.monotonic()
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "429 Too Many Requests" in result.detail
    assert "asks to wait" in result.detail
    assert pickle.loads(pickled(sink))._retry_after.until_s == 0, (
        "another machine has another clock"
    )
    while set(sink.commit(epoch_id(0), parts).outcomes.values()) == {Outcome.UNKNOWN}:
        assert time.monotonic() - began < 20
    assert time.monotonic() - began >= 2
    assert len(shop.requests) == 3, "it was asked before the time was over"
    assert shop.numbers == [1, 2, 3]


@pytest.mark.parametrize("status", [301, 400, 404, 413])
def test_a_rejection_names_epoch_part_and_rows(
    shop: Shop, url: str, tmp_path: Path, status: int
) -> None:
    shop.answers = [200, status]
    sink = sink_to(url, tmp_path)
    parts = prepare(sink, 5, rows(1, 2, 3, 4))
    says = f"epoch 5, part 0, rows 2 to 3: .*{status} "
    with pytest.raises(CommitFailed, match=says) as told:
        commit(sink, 5, parts)
    assert not isinstance(told.value, CommitBlocked)
    assert "as I said" not in str(told.value), "bodies repeat what they were sent"
    assert commit(sink, 5, parts) == FINE
    assert shop.numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_refused_password_is_not_blamed_on_the_rows(
    shop: Shop, url: str, tmp_path: Path, status: int
) -> None:
    """A token that has expired: drop= must not give the epoch up because of it."""
    shop.answers = [200, status]
    sink = sink_to(url, tmp_path)
    parts = prepare(sink, 5, rows(1, 2, 3, 4))
    with pytest.raises(CommitBlocked, match=f"epoch 5, part 0, rows 2 to 3: .*{status} "):
        commit(sink, 5, parts)
    assert commit(sink, 5, parts) == FINE
    assert shop.numbers == [1, 2, 3, 4]


def test_parallel_posts_share_no_connection(shop: Shop, url: str, tmp_path: Path) -> None:
    sink = sink_to(url, tmp_path, parallel=3)
    shares = [rows(*range(part * 10, part * 10 + 6)) for part in range(3)]
    assert commit(sink, 0, prepare(sink, 0, *shares)) == FINE
    assert sorted(shop.numbers) == sorted(row["n"] for share in shares for row in share)
    for part in range(3):
        order = [n for n in shop.numbers if n // 10 == part]
        assert order == sorted(order)
    assert len(shop.connections) <= 3


def test_an_endpoint_travels_without_its_connections() -> None:
    endpoint = HttpEndpoint("http://shop/orders", {"a": "b"})
    endpoint._idle.append(http.client.HTTPConnection("shop"))
    assert pickle.loads(pickled(endpoint)) == endpoint
    assert pickle.loads(pickled(endpoint))._idle == []


def test_every_value_has_a_form_in_json() -> None:
    from datetime import date, datetime, timezone
    from decimal import Decimal

    moment = datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=timezone.utc)
    values: dict[str, tuple[pa.DataType, Any, Any]] = {
        "nan": (pa.float64(), float("nan"), "NaN"),
        "inf": (pa.float64(), float("-inf"), "-Infinity"),
        "big": (pa.int64(), 2**63 - 1, 2**63 - 1),
        "yes": (pa.bool_(), True, True),
        "bytes": (pa.binary(), b"\xff\x00", "/wA="),
        "money": (pa.decimal128(20, 2), Decimal("1.50"), "1.50"),
        "day": (pa.date32(), date(2024, 2, 29), "2024-02-29"),
        "zoned": (pa.timestamp("us", "Europe/Paris"), moment, "2024-02-29T12:30:00.000005Z"),
        "plain": (pa.timestamp("us"), datetime(2024, 2, 29), "2024-02-29T00:00:00"),
        "map": (pa.map_(pa.int32(), pa.float64()), [(1, 0.5)], {"1": 0.5}),
        "list": (pa.list_(pa.binary()), [b"a", None], ["YQ==", None]),
        "struct": (pa.struct([("x", pa.date32())]), {"x": None}, {"x": None}),
        "null": (pa.string(), None, None),
        'odd "name"': (pa.string(), "ß\n🧵", "ß\n🧵"),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in values.items()])
    table = pa.Table.from_pylist([{name: given for name, (_, given, _) in values.items()}], schema)
    delivery = Delivery("q", "a" * 32, "s", 0, 0, 0, table)
    body = HttpEndpoint("http://shop/orders", form="array")._body(delivery)
    (entry,) = json.loads(body)
    assert entry["row"] == {name: wanted for name, (_, _, wanted) in values.items()}


def everything_shown(sink: WriteAheadSink, shop: Shop, folder: Path, answer: Any) -> list[str]:
    """Whatever people get to see of a sink whose endpoint repeats what it was sent."""
    parts = prepare(sink, 0, rows(1))
    shop.answers = [answer]
    with pytest.raises(CommitFailed, match="400") as caught:
        commit(sink, 0, parts)
    assert "***" in str(caught.value)
    files = [path for path in (folder / "wal").rglob("*") if path.is_file()]
    assert any(path.suffix == ".progress" for path in files)
    return [
        str(caught.value),
        repr(caught.value.__cause__),
        repr(sink),
        repr(sink.deliver),
        repr(sink.check(SCHEMA, QUERY)),
        json.dumps(parts[0].committable.to_json()),
        "".join(str(path) for path in folder.rglob("*")),
        *(path.read_text(errors="replace") for path in files),
    ]


def test_secrets_show_nowhere(shop: Shop, url: str, tmp_path: Path) -> None:
    for text in everything_shown(sink_to(url, tmp_path), shop, tmp_path, "echo"):
        for secret in ("s3cret", "k-very-secret", "Bearer"):
            assert secret not in text


@pytest.mark.parametrize("answer", ["echo", "echo decoded"])
def test_secrets_in_a_url_show_nowhere_as_written_or_decoded(
    shop: Shop, url: str, tmp_path: Path, answer: str
) -> None:
    """The path of a webhook is its password; and a server may say what it has decoded."""
    where = f"{url}/services/T0K%2Fhook-pass?key=a%20b%2Bc+d&user=j%C3%B6rg"
    sink = WriteAheadSink(HttpEndpoint(where), tmp_path / "wal")
    for text in everything_shown(sink, shop, tmp_path, answer):
        for secret in ("hook-pass", "a%20b", "a b+c", "b%2Bc", "jörg", "j%C3%B6rg", "T0K"):
            assert secret not in text


def test_two_paths_of_one_host_are_two_places() -> None:
    """And a key that is exchanged leaves the place as it is."""
    urls = [f"https://shop.example/{path}" for path in ("a", "b", "b/", "b?key=1", "b?key=2")]
    a, b, *others = map(HttpEndpoint, urls)
    assert (a.name, a.target) != (b.name, b.target)
    assert {(other.name, other.target) for other in others} == {(b.name, b.target)}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Signed by itself, for 127.0.0.1; the key is in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    made = ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *names],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


def test_an_untrusted_certificate_is_refused(
    shop: Shop, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with serving(shop, certificate=certificate) as url:
        sink = sink_to(url, tmp_path, timeout_s=0.2)
        with pytest.raises(BadSink, match=r"self.signed certificate.*SSL_CERT_FILE"):
            sink.check(SCHEMA, QUERY)
        result = sink.commit(epoch_id(0), prepare(sink, 0, rows(1)))
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "CERTIFICATE_VERIFY_FAILED" in result.detail
    assert shop.requests == []


def test_an_authority_of_ones_own(
    shop: Shop, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("cert.pem")))
    with serving(shop, certificate=certificate) as url:
        sink = sink_to(url, tmp_path, honours_ids=True)
        sink.check(SCHEMA, QUERY)
        assert commit(sink, 0, prepare(sink, 0, rows(1, 2, 3))) == {Outcome.COMMITTED}
        assert len(shop.connections) == 1
        other = sink_to(url.replace("127.0.0.1", "localhost"), tmp_path)
        with pytest.raises(BadSink, match=r"[Hh]ostname.*localhost"):
            other.check(SCHEMA, QUERY)
    assert shop.numbers == [1, 2, 3]
