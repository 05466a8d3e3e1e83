"""Receivers: where pushed values arrive, in a few lines, so that `sources.journaled` keeps them.

A receiver's ``receive`` runs on a thread beside Spark's driver for as long as the query does::

    class QueueReceiver(Receiver):
        def receive(self, journal):
            with connect(self.url) as queue:
                while not journal.stopping.is_set():
                    for message in queue.take(1_000, timeout_s=1):
                        journal.append(message.body)
                    journal.sync()              # on the disk now
                    queue.acknowledge()         # so the sender may forget it

If it raises, it is called again after a pause; the query continues with what is there. The query
ends only if the journal itself cannot be written. Let errors of ``append`` and ``sync`` through,
and acknowledge nothing after them: what was appended since the last ``sync`` is not in the journal.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass

from beadline.errors import BadSetting
from beadline.sources.journal.log import Journal

_CONNECT_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.2
_CHUNK_BYTES = 1 << 20


class Receiver(ABC):
    """Accepts what is pushed, and appends it to the journal."""

    @abstractmethod
    def receive(self, journal: Journal) -> None:
        """Append what arrives and sync it, until ``journal.stopping`` is set or nothing comes."""


@dataclass(frozen=True)
class SocketReceiver(Receiver):
    """Lines of text from a TCP server: each is a value, without its line feed.

    The window that remains: a sender knows that its bytes reached this machine's kernel, not that
    they are on the disk. What is between the two when the machine or the process dies is lost, a
    part of a second's lines; nothing that Spark was offered is.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        """Refuse what is not an address."""
        if not self.host or not 0 < self.port < 65536:
            raise BadSetting(
                f"a socket's address is a host and a port, not {self.host}:{self.port}"
            )

    def receive(self, journal: Journal) -> None:
        """Read until the server ends the connection; a last line without its end is kept too."""
        address = (self.host, self.port)
        with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(_LOOK_EVERY_S)
            rest = b""
            while not journal.stopping.is_set():
                try:
                    data = connection.recv(_CHUNK_BYTES)
                except TimeoutError:
                    continue
                *lines, rest = (rest + data).split(b"\n")
                if not data and rest:
                    lines, rest = [rest], b""
                for line in lines:
                    journal.append(line.removesuffix(b"\r"))
                journal.sync()
                if not data:
                    return
