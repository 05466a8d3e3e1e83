"""A TCP proxy as fault injector: the network between a client and a real server, cut on purpose.

::

    with TcpProxy(server_port) as proxy:
        client = connect(proxy.port)
        proxy.stall_answers()  # what the client now requests is done, but it gets no answer

Killing a server tests what happens when it forgets; a cut connection tests the harder case, in
which the server did it and the client does not know. It listens on loopback only. A proxy keeps its
port when it is cut, stopped and started, so that a server may advertise it.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

Rewrite = Callable[[bytes], bytes]

_CHUNK = 65_536
# Closing with this set drops what was not sent yet, as a crash does.
_RESET = struct.pack("ii", 1, 0)


class TcpProxy:
    """Forwards connections on `port` to `target_port`, until a fault is set.

    With `port=0` the system chooses one at the first `start`. The faults may be called from any
    thread, in any order, and hold until the next of them or `restore`:
    - `cut` closes all connections and refuses new ones;
    - `stall` keeps connections, accepts new ones, and forwards nothing in either direction;
    - `stall_answers` forwards what the client sends, and holds back what the server answers.
    What was held back is forwarded after `restore`, unless the connection was cut meanwhile.
    """

    def __init__(
        self, target_port: int, host: str = "127.0.0.1", port: int = 0, target_host: str = ""
    ) -> None:
        self.port = port
        self._host = host
        self._target = (target_host or host, target_port)
        self._lock = threading.Lock()
        self._requests = threading.Event()  # set while this direction flows
        self._answers = threading.Event()
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> TcpProxy:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and forward. Fine if it does so already."""
        self._requests.set()
        self._answers.set()
        with self._lock:
            if self._listener is not None:
                return
            listener = socket.create_server((self._host, self.port))
            self.port = listener.getsockname()[1]
            self._listener = listener
        self._thread("accept", self._accept, listener)

    def stop(self) -> None:
        """Close all connections and refuse new ones. Fine if it is stopped already."""
        with self._lock:
            listener, self._listener = self._listener, None
            sockets, self._sockets = self._sockets, set()
        if listener is not None:
            # Closing alone does not wake the thread in `accept`, and the port would stay open.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for each in sockets:
            _reset(each)
        # Threads that wait for the end of a stall find their sockets closed.
        self._requests.set()
        self._answers.set()

    def cut(self) -> None:
        """Close all connections and refuse new ones, as if the server had died."""
        self.stop()

    def stall(self) -> None:
        """Hold back everything, in both directions, as if a cable were unplugged."""
        self._requests.clear()
        self._answers.clear()

    def stall_answers(self) -> None:
        """Hold back what the server sends: requests arrive and are done, replies are not seen."""
        self._requests.set()
        self._answers.clear()

    def restore(self) -> None:
        """Forward again, what was held back first."""
        self.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # stopped
                return
            try:
                server = self._connect()
            except OSError:  # the server is down: so is its proxy
                _reset(client)
                continue
            with self._lock:
                cut = self._listener is not listener  # since it was accepted
                if not cut:
                    self._sockets |= {client, server}
            if cut:
                _reset(client)
                _reset(server)
                return
            asked, answered = self._changes()
            self._thread("requests", self._forward, client, server, self._requests, asked)
            self._thread("answers", self._forward, server, client, self._answers, answered)

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._target)

    def _changes(self) -> tuple[Rewrite, Rewrite]:
        """A hook for the bytes of one connection, by direction: unchanged here."""
        return bytes, bytes

    def _forward(
        self, source: socket.socket, target: socket.socket, flows: threading.Event, change: Rewrite
    ) -> None:
        """One direction of one connection; the end of either direction is the end of both."""
        try:
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while chunk := source.recv(_CHUNK):
                flows.wait()
                target.sendall(change(chunk))
            flows.wait()  # news of the end is held back too
        except OSError:
            pass  # cut
        finally:
            self._close(source, target)

    def _close(self, *ends: socket.socket) -> None:
        with self._lock:
            self._sockets.difference_update(ends)
        for each in ends:
            with suppress(OSError):  # wakes the other direction's thread
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _thread(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        name = f"proxy-{self.port}-{name}"
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()


def _reset(each: socket.socket) -> None:
    with suppress(OSError):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        each.shutdown(socket.SHUT_RDWR)
    each.close()
