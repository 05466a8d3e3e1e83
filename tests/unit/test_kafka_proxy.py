"""The proxy that puts its own address into brokers' answers: every version of every answer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kafka")

from beadline.verify.kafka_proxy import BrokerAddress, _Conversation, _readers, addresses

BROKER = ("broker.example", 9092)
NUMBER = 77
OTHER = 19  # a request whose answer names nobody
# Where an answer names brokers, and the first version that does.
LISTS = {
    "MetadataResponse": ("brokers", "MetadataResponseBroker", 0),
    "FindCoordinatorResponse": ("coordinators", "Coordinator", 4),
    "DescribeClusterResponse": ("brokers", "DescribeClusterBroker", 0),
    "ProduceResponse": ("node_endpoints", "NodeEndpoint", 10),
}
CASES = [(key, n) for key, answer in _readers().items() for n in range(answer.max_version + 1)]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request(key: int, version: int, number: int = NUMBER) -> bytes:
    numbers = ((key, 2), (version, 2), (number, 4))
    return frame(b"".join(each.to_bytes(size, "big") for each, size in numbers) + b"and more")


def answer(key: int, version: int) -> Any:
    """One that names a broker, where this version can."""
    kind = _readers()[key]
    made = kind(version=version)
    name, entry, first = LISTS[kind.__name__]
    if version >= first:
        host, port = BROKER
        setattr(made, name, [getattr(kind, entry)(version=version, host=host, port=port)])
    elif hasattr(made, "host"):
        made.host, made.port = BROKER
    made.with_header(correlation_id=NUMBER)
    return made


class Ports:
    """Gives every broker a port of its own."""

    def __init__(self) -> None:
        self.asked: list[BrokerAddress] = []

    def __call__(self, broker: BrokerAddress) -> int:
        self.asked.append(broker)
        return 4711


@pytest.mark.parametrize(("key", "version"), CASES)
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_an_answer_names_the_proxy_instead(key: int, version: int, size: int) -> None:
    ports = Ports()
    conversation = _Conversation(ports)
    asked = request(key, version)
    assert b"".join(
        conversation.asked(asked[n : n + size]) for n in range(0, len(asked), size)
    ) == (asked)
    said: bytes = answer(key, version).encode(header=True, framed=True)
    chunks = [said[n : n + size] for n in range(0, len(said), size)]
    heard = b"".join(map(conversation.answered, chunks))
    kind = _readers()[key]
    found = kind.decode(heard, version=version, header=True, framed=True)
    assert found.header.correlation_id == NUMBER
    if version < LISTS[kind.__name__][2] and not hasattr(found, "host"):
        assert (heard, ports.asked) == (said, [])
        return
    assert ports.asked == [BROKER]
    assert b"127.0.0.1" in heard
    assert b"broker.example" not in heard
    # Nothing else is changed: put back what was there, and it is the same answer.
    back = Ports()
    undone = _Conversation(back)
    undone.asked(asked)
    undone.answered(heard)
    assert back.asked == [("127.0.0.1", 4711)]
    assert len(heard) == len(said) - len("broker.example") + len("127.0.0.1")


def test_a_coordinator_that_is_not_there_stays_so() -> None:
    key = next(key for key, kind in _readers().items() if kind.__name__.startswith("Find"))
    nobody = _readers()[key](version=3, error_code=15, node_id=-1, host="", port=-1)
    nobody.with_header(correlation_id=NUMBER)
    said: bytes = nobody.encode(header=True, framed=True)
    ports = Ports()
    conversation = _Conversation(ports)
    conversation.asked(request(key, 3))
    assert conversation.answered(said) == said
    assert ports.asked == []


def test_answers_to_other_questions_go_on_as_they_are() -> None:
    conversation = _Conversation(Ports())
    conversation.asked(request(OTHER, 0, 1) + request(3, 9) + request(OTHER, 0, 2))
    one, two = (frame(number.to_bytes(4, "big") + b"yes") for number in (1, 2))
    said = one + answer(3, 9).encode(header=True, framed=True) + two
    heard = conversation.answered(said)
    assert heard.startswith(one)
    assert heard.endswith(two)
    assert b"127.0.0.1" in heard


@pytest.mark.parametrize(
    ("servers", "wanted"),
    [
        ("one:9093", [("one", 9093)]),
        ("one, two:1", [("one", 9092), ("two", 1)]),
        ("PLAINTEXT://one:9093", [("one", 9093)]),
        ("[::1]:9093", [("::1", 9093)]),
    ],
)
def test_addresses(servers: str, wanted: list[BrokerAddress]) -> None:
    assert addresses(servers) == wanted
