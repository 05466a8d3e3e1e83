"""The network between clients and the brokers of a Kafka cluster that is there already.

A client asks one broker, is told the addresses of all, and connects to those: past any proxy. So
this one reads all traffic, and in every answer that names a broker it puts the address of a proxy::

    with KafkaProxy("broker-1:9092,broker-2:9092") as proxy:
        client = connect(f"127.0.0.1:{proxy.port}")
        proxy.stall_answers()  # of every broker

An encrypted connection cannot be read.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from beadline.verify.proxy import Rewrite, TcpProxy

BrokerAddress = tuple[str, int]

_LOOPBACK = "127.0.0.1"
_PORT = 9092
_CONNECT_TIMEOUT_S = 5.0
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")  # what is asked for, in which version, and its number
_NUMBER = struct.Struct(">i")


def addresses(servers: str) -> list[BrokerAddress]:
    """Read what clients are given as bootstrap servers.

    >>> addresses("one:9093, two")
    [('one', 9093), ('two', 9092)]
    """
    found = []
    for each in servers.split(","):
        host, colon, port = each.strip().rpartition("://")[2].rpartition(":")
        found.append((host, int(port)) if colon else (port, _PORT))
    return [(host.strip("[]"), port) for host, port in found]


class KafkaProxy:
    """A proxy for each broker, and one for first connections, with ``TcpProxy``'s faults."""

    def __init__(self, servers: str) -> None:
        self._lock = threading.Lock()
        self._first = _Wire(addresses(servers), self._port_of)
        self._brokers: dict[BrokerAddress, _Wire] = {}

    @property
    def port(self) -> int:
        """The port for the first connection."""
        return self._first.port

    def __enter__(self) -> KafkaProxy:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and forward. Fine if it does so already."""
        for wire in self._wires():
            wire.start()

    def stop(self) -> None:
        """Close all connections and refuse new ones. Fine if it is stopped already."""
        for wire in self._wires():
            wire.stop()

    def cut(self) -> None:
        """As if all brokers had died."""
        self.stop()

    def stall(self) -> None:
        """Hold back everything, in both directions."""
        for wire in self._wires():
            wire.stall()

    def stall_answers(self) -> None:
        """Hold back what brokers answer: requests arrive and are done."""
        for wire in self._wires():
            wire.stall_answers()

    def restore(self) -> None:
        """Forward again, what was held back first."""
        self.start()

    def _wires(self) -> list[_Wire]:
        with self._lock:
            return [self._first, *self._brokers.values()]

    def _port_of(self, broker: BrokerAddress) -> int:
        """The port of a broker's proxy, made when an answer first names the broker."""
        with self._lock:
            if broker not in self._brokers:
                wire = _Wire([broker], self._port_of)
                wire.start()
                self._brokers[broker] = wire
            return self._brokers[broker].port


class _Wire(TcpProxy):
    """Reads the answers of one broker, or of the first that can be reached."""

    def __init__(
        self, targets: Sequence[BrokerAddress], port_of: Callable[[BrokerAddress], int]
    ) -> None:
        super().__init__(targets[0][1], target_host=targets[0][0])
        self._targets = targets
        self._port_of = port_of

    def _connect(self) -> socket.socket:
        refused: OSError | None = None
        for target in self._targets:
            try:
                made = socket.create_connection(target, _CONNECT_TIMEOUT_S)
            except OSError as error:
                refused = error
            else:
                made.settimeout(None)
                return made
        assert refused is not None
        raise refused

    def _changes(self) -> tuple[Rewrite, Rewrite]:
        conversation = _Conversation(self._port_of)
        return conversation.asked, conversation.answered


class _Conversation:
    """One connection: what was asked says how to read the answer."""

    def __init__(self, port_of: Callable[[BrokerAddress], int]) -> None:
        self._port_of = port_of
        self._asked: dict[int, tuple[int, int]] = {}
        self._requests = bytearray()
        self._answers = bytearray()

    def asked(self, chunk: bytes) -> bytes:
        """Note what is requested; the bytes are forwarded unchanged."""
        self._requests += chunk
        for frame in _frames(self._requests):
            key, version, number = _REQUEST.unpack_from(frame, _SIZE.size)
            if key in _readers():
                self._asked[number] = key, version
        return chunk

    def answered(self, chunk: bytes) -> bytes:
        """Whole answers, with our addresses in them."""
        self._answers += chunk
        return b"".join(map(self._changed, _frames(self._answers)))

    def _changed(self, frame: bytes) -> bytes:
        (number,) = _NUMBER.unpack_from(frame, _SIZE.size)
        key, version = self._asked.pop(number, (-1, 0))
        if key < 0:
            return frame
        answer = _readers()[key].decode(frame, version=version, header=True, framed=True)
        brokers = [each for each in _named(answer) if each.host and each.port > 0]
        if not brokers:
            return frame
        for each in brokers:
            each.host, each.port = _LOOPBACK, self._port_of((each.host, each.port))
        changed: bytes = answer.encode(header=True, framed=True)
        return changed


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Take what is complete off the front of the buffer."""
    while len(buffer) >= _SIZE.size:
        end = _SIZE.size + _SIZE.unpack_from(buffer)[0]
        if len(buffer) < end:
            return
        frame = bytes(buffer[:end])
        del buffer[:end]
        yield frame


@cache
def _readers() -> dict[int, Any]:
    """The answers that name brokers, by what is asked."""
    from kafka.protocol.admin import DescribeClusterResponse
    from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
    from kafka.protocol.producer import ProduceResponse

    classes = (MetadataResponse, FindCoordinatorResponse, DescribeClusterResponse, ProduceResponse)
    return {each.API_KEY: each for each in classes}


def _named(answer: Any) -> list[Any]:
    """What has the host and the port of a broker in an answer; which it is depends on versions."""
    lists = ("brokers", "coordinators", "node_endpoints")
    found = [each for name in lists for each in getattr(answer, name, None) or ()]
    return [answer, *found] if hasattr(answer, "host") else found
