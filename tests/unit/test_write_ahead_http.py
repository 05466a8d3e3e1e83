"""``HttpReceiver`` against a real server on the loopback: answers, repeats, deaths, secrets."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.sink import Outcome
from beadline.sinks.write_ahead import Delivery, HttpReceiver, WriteAheadSink
from beadline.testing.suite.target import QUERY, epoch_id, pickled
from tests.unit.write_ahead_receivers import SCHEMA, commit, prepare, rows

FINE = {Outcome.COMMITTED}
SECRET = "Bearer t0p-s3cret-token"


@dataclass
class Shop:
    """A receiver: what it took by id, every request, and how it will answer the next ones.

    An answer is a status, sent without taking the rows; "lost" takes them and hangs up; "echo" is a
    refusal that repeats what it was sent.
    """

    honours_ids: bool = True
    taken: list[tuple[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)

    def take(self, entries: list[dict[str, Any]]) -> None:
        known = {id_ for id_, _ in self.taken} if self.honours_ids else set()
        self.taken += [(e["id"], e["row"]) for e in entries if e["id"] not in known]

    @property
    def numbers(self) -> list[int]:
        return [row["n"] for _, row in self.taken]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    shop: Shop

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        shop = server.shop
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        shop.requests.append({"path": self.path, "body": body, **dict(self.headers)})
        shop.connections.add(self.client_address)
        answer = shop.answers.pop(0) if shop.answers else 200
        lines = self.headers["Content-Type"] == "application/x-ndjson"
        entries = list(map(json.loads, body.splitlines())) if lines else json.loads(body)
        if answer in (200, 204, "lost"):
            shop.take(entries)
        if answer == "lost":
            self.close_connection = True
            return
        said = str(dict(self.headers)) + self.path if answer == "echo" else "as I said"
        self.answer(400 if answer == "echo" else answer, said)

    def answer(self, status: int, said: str) -> None:
        self.send_response(status)
        data = b"" if status == 204 else said.encode()
        self.send_header("Content-Length", str(len(data)))
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@contextmanager
def serving(shop: Shop, port: int = 0) -> Iterator[str]:
    """Serve until the block ends; return the address."""
    server = Server(("127.0.0.1", port), Handler)
    server.shop = shop
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


def sink_to(url: str, folder: Path, **settings: Any) -> WriteAheadSink:
    receiver = HttpReceiver(f"{url}/orders?key=k-very-secret", {"Authorization": SECRET}, 5.0)
    return WriteAheadSink(receiver, folder / "wal", "shop", batch_rows=2, **settings)


@pytest.mark.parametrize("form", ["lines", "array"])
def test_rows_arrive_with_their_ids_over_one_connection(
    shop: Shop, url: str, tmp_path: Path, form: Any
) -> None:
    receiver = HttpReceiver(f"{url}/orders?key=1", {"Authorization": SECRET}, form=form)
    sink = WriteAheadSink(receiver, tmp_path / "wal", batch_rows=2, honours_ids=True)
    assert sink.default_name == "127.0.0.1-orders-" + sink.default_name[-8:]
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


def test_a_server_that_is_down_and_comes_back(shop: Shop, tmp_path: Path) -> None:
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


def test_409_is_taken_if_the_receiver_honours_ids(shop: Shop, url: str, tmp_path: Path) -> None:
    shop.answers = [409]
    sink = sink_to(url, tmp_path)
    parts = prepare(sink, 0, rows(1, 2, 3))
    with pytest.raises(CommitFailed, match=r"409 Conflict.*honours_ids=True"):
        commit(sink, 0, parts)
    shop.answers = [409]
    assert commit(sink_to(url, tmp_path, honours_ids=True), 0, parts) == FINE
    assert shop.numbers == [3]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413])
def test_a_refusal_names_epoch_part_and_rows(
    shop: Shop, url: str, tmp_path: Path, status: int
) -> None:
    shop.answers = [200, status]
    sink = sink_to(url, tmp_path)
    parts = prepare(sink, 5, rows(1, 2, 3, 4))
    with pytest.raises(CommitFailed, match=f"epoch 5, part 0, rows 2 to 3: .*{status} .*as I said"):
        commit(sink, 5, parts)
    assert commit(sink, 5, parts) == FINE
    assert shop.numbers == [1, 2, 3, 4]


def test_secrets_show_nowhere(shop: Shop, url: str, tmp_path: Path) -> None:
    sink = sink_to(url, tmp_path)
    parts = prepare(sink, 0, rows(1))
    shop.answers = ["echo"]
    with pytest.raises(CommitFailed, match="400") as caught:
        commit(sink, 0, parts)
    shown = [
        str(caught.value),
        repr(caught.value.__cause__),
        repr(sink),
        repr(sink.deliver),
        repr(sink.check(SCHEMA, QUERY)),
        json.dumps(parts[0].committable.to_json()),
        "".join(path.read_text(errors="replace") for path in (tmp_path / "wal").rglob("*.*")),
    ]
    assert "…" in shown[0]
    for text in shown:
        for secret in ("s3cret", "k-very-secret", "Bearer"):
            assert secret not in text


def test_parallel_posts_share_no_connection(shop: Shop, url: str, tmp_path: Path) -> None:
    sink = sink_to(url, tmp_path, parallel=3)
    shares = [rows(*range(part * 10, part * 10 + 6)) for part in range(3)]
    assert commit(sink, 0, prepare(sink, 0, *shares)) == FINE
    assert sorted(shop.numbers) == sorted(row["n"] for share in shares for row in share)
    for part in range(3):
        order = [n for n in shop.numbers if n // 10 == part]
        assert order == sorted(order)
    assert len(shop.connections) <= 3


def test_a_receiver_travels_without_its_connections() -> None:
    receiver = HttpReceiver("http://shop/orders", {"a": "b"})
    receiver._idle.append(http.client.HTTPConnection("shop"))
    import pickle

    assert pickle.loads(pickled(receiver)) == receiver
    assert pickle.loads(pickled(receiver))._idle == []


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
    body = HttpReceiver("http://shop/orders", form="array")._body(delivery)
    (entry,) = json.loads(body)
    assert entry["row"] == {name: wanted for name, (_, _, wanted) in values.items()}
