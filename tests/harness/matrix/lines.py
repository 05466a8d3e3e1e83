"""A TCP server that sends numbered lines to any client, and continues where it was."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class LineServer:
    """Sends ``0``, ``1``, ``2``, …; a line that was handed to the network is not sent again."""

    def __init__(self, per_second: int = 2_000) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pause_s = 0.01
        self._burst = max(1, int(per_second * self._pause_s))
        self.port: int = self._listener.getsockname()[1]
        self.sent = 0
        self.limit = 1 << 60
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        while True:
            until = min(self.sent + self._burst, self.limit)
            connection.sendall(b"".join(b"%d\n" % number for number in range(self.sent, until)))
            self.sent = until
            time.sleep(self._pause_s)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()
