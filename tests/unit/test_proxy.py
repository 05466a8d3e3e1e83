"""The fault injector does what it says on a wire of our own: an echo server, and sockets."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from beadline.verify.proxy import TcpProxy

HOST = "127.0.0.1"
SOON_S = 10.0
NEVER_S = 0.2  # long enough to have come, on a wire that forwards within a millisecond


class Echo(socketserver.ThreadingTCPServer):
    """Answers every chunk with itself, and remembers what arrived."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), EchoHandler)
        self.port = int(self.server_address[1])
        self._arrived = b""
        self._news = threading.Condition()

    def note(self, chunk: bytes) -> None:
        with self._news:
            self._arrived += chunk
            self._news.notify_all()

    def has(self, chunk: bytes, timeout_s: float) -> bool:
        """Whether these bytes arrive within the time."""
        with self._news:
            return self._news.wait_for(lambda: chunk in self._arrived, timeout_s)


class EchoHandler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Echo)
        with suppress(OSError):
            while chunk := self.request.recv(65_536):
                self.server.note(chunk)
                self.request.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(echo.port) as running:
        yield running


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with connect(proxy) as connection:
        yield connection


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=SOON_S)


def receive(connection: socket.socket, count: int) -> bytes:
    """Exactly this number of bytes."""
    found = b""
    while len(found) < count:
        chunk = connection.recv(count - len(found))
        assert chunk, f"the connection ended after {found!r}"
        found += chunk
    return found


def ask(connection: socket.socket, question: bytes) -> bytes:
    connection.sendall(question)
    return receive(connection, len(question))


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing comes, neither bytes nor an end."""
    connection.settimeout(NEVER_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SOON_S)
    return False


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_it_forwards_both_ways(client: socket.socket) -> None:
    assert ask(client, b"hello") == b"hello"
    large = bytes(range(256)) * 4_096
    sender = threading.Thread(target=client.sendall, args=(large,), daemon=True)
    sender.start()
    assert receive(client, len(large)) == large


def test_connections_are_apart(proxy: TcpProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        first.sendall(b"first")
        second.sendall(b"second")
        assert receive(second, 6) == b"second"
        assert receive(first, 5) == b"first"
        first.close()
        assert ask(second, b"still here") == b"still here"


def test_cut_ends_connections_and_refuses_new_ones(
    proxy: TcpProxy, client: socket.socket, echo: Echo
) -> None:
    assert ask(client, b"before") == b"before"
    proxy.cut()
    assert has_ended(client)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    port = proxy.port
    proxy.restore()
    assert proxy.port == port
    with connect(proxy) as again:
        assert ask(again, b"after") == b"after"


def test_stall_holds_back_everything(proxy: TcpProxy, client: socket.socket, echo: Echo) -> None:
    assert ask(client, b"before") == b"before"
    proxy.stall()
    client.sendall(b"question")
    assert is_silent(client)
    assert not echo.has(b"question", 0)
    proxy.restore()
    assert receive(client, 8) == b"question"


def test_a_stalled_wire_still_connects(proxy: TcpProxy) -> None:
    proxy.stall()
    with connect(proxy) as connection:
        connection.sendall(b"question")
        assert is_silent(connection)
        proxy.restore()
        assert receive(connection, 8) == b"question"


def test_stall_answers_lets_the_request_arrive(
    proxy: TcpProxy, client: socket.socket, echo: Echo
) -> None:
    assert ask(client, b"before") == b"before"
    proxy.stall_answers()
    client.sendall(b"question")
    assert echo.has(b"question", SOON_S)
    assert is_silent(client)
    proxy.restore()
    assert receive(client, 8) == b"question"


def test_an_answer_that_was_held_back_is_lost_with_a_cut(
    proxy: TcpProxy, client: socket.socket, echo: Echo
) -> None:
    """The case that exactly-once is about: it was done, and nobody will ever say so."""
    proxy.stall_answers()
    client.sendall(b"question")
    assert echo.has(b"question", SOON_S)
    proxy.cut()
    assert has_ended(client)
    proxy.restore()
    with connect(proxy) as again:
        assert ask(again, b"other") == b"other"


def test_a_server_that_is_down_is_a_connection_that_ends(echo: Echo) -> None:
    echo.shutdown()
    echo.server_close()
    with TcpProxy(echo.port) as proxy:
        try:
            connection = connect(proxy)
        except ConnectionError:  # it may have ended before the client saw it begin
            return
        with connection:
            assert has_ended(connection)


def test_start_and_stop_may_be_repeated(echo: Echo) -> None:
    proxy = TcpProxy(echo.port)
    proxy.stop()
    for _ in range(3):
        proxy.start()
        proxy.start()
        with connect(proxy) as connection:
            assert ask(connection, b"hello") == b"hello"
        proxy.stop()
        proxy.stop()
