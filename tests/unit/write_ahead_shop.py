"""A shop that takes rows over HTTP, or HTTPS, for the tests of ``HttpEndpoint``."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from beadline.sinks.write_ahead import HttpEndpoint, WriteAheadSink

SECRET = "Bearer t0p-s3cret-token"


@dataclass
class Shop:
    """An endpoint: what it took by id, every request, and how it will answer the next ones.

    An answer is a status, sent without taking the rows; "lost" takes them and hangs up; "echo" is a
    refusal that repeats what it was sent, "echo decoded" one that has decoded it.
    """

    honours_ids: bool = True
    taken: list[tuple[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    retry_after: str = "0"

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
        echo = {"echo": self.path, "echo decoded": unquote_plus(self.path)}
        if answer in echo:
            said = f"Cannot POST {echo[answer]}, {dict(self.headers)}"
            self.answer(400, said, reason=said)
        else:
            self.answer(answer, "as I said")

    def answer(self, status: int, said: str, reason: str | None = None) -> None:
        self.send_response(status, reason)
        data = b"" if status == 204 else said.encode()
        self.send_header("Content-Length", str(len(data)))
        if status in (429, 503):
            assert isinstance(self.server, Server)
            self.send_header("Retry-After", self.server.shop.retry_after)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Quiet."""


@contextmanager
def serving(shop: Shop, port: int = 0, certificate: Path | None = None) -> Iterator[str]:
    """Serve until the block ends; return the address. A certificate has its key in one file."""
    server = Server(("127.0.0.1", port), Handler)
    server.shop = shop
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        scheme = "http" if certificate is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def sink_to(url: str, folder: Path, **settings: Any) -> WriteAheadSink:
    endpoint = HttpEndpoint(f"{url}/orders?key=k-very-secret", {"Authorization": SECRET}, 5.0)
    return WriteAheadSink(endpoint, folder / "wal", "shop", batch_rows=2, **settings)
