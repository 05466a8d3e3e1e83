"""Reading a control topic through a leader that does not know its end yet."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError

from beadline.ids import PartId
from beadline.sinks.kafka import markers
from beadline.sinks.kafka.client import Transaction
from beadline.sinks.kafka.markers import Marker

END = 3


class Message:
    """A record, or the news that the log ends here."""

    def __init__(self, offset: int, marker: Marker | None) -> None:
        self._offset = offset
        self._marker = marker

    def error(self) -> Any:
        return None if self._marker is not None else KafkaError(KafkaError._PARTITION_EOF)

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        assert self._marker is not None
        return self._marker.transaction.id.encode()

    def value(self) -> bytes:
        assert self._marker is not None
        return self._marker.to_bytes()


class Leader:
    """Shows fewer records at first; a race that no real broker can be made to lose on demand."""

    def __init__(self, *shown: int) -> None:
        self.shown = list(shown)
        self.at = 0

    def assign(self, places: list[Any]) -> None:
        self.at = places[0].offset

    def poll(self, timeout_s: float) -> Message:
        limit = self.shown[0]
        if self.at >= limit:
            self.shown = self.shown[1:] or self.shown
            return Message(limit, None)
        self.at += 1
        part = PartId("q", "a" * 32, "out", 1, self.at, 0, 0)
        return Message(self.at - 1, Marker(Transaction(f"id-{self.at}", 1, 0), part))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "_READ_TIMEOUT_S", 0.5)


@pytest.mark.parametrize("shown", [(3,), (1, 3), (0, 0, 2, 3), (1, 4)])
def test_what_a_new_leader_does_not_show_yet_is_waited_for(shown: tuple[int, ...]) -> None:
    found = list(markers._read(Leader(*shown), "topic", 0, END))
    assert [offset for offset, _ in found] == [0, 1, 2]


def test_what_it_never_shows_is_not_called_absent() -> None:
    with pytest.raises(TimeoutError, match="ends at 2, not at 3"):
        list(markers._read(Leader(2), "topic", 0, END))
