"""The transactional ids of Kafka's writers: two sets by the epoch's parity, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from beadline.ids import PartId, QueryId
from beadline.sinks.kafka.markers import Marker
from beadline.sinks.kafka.part import KafkaPart, WriterId

PART = PartId("orders", "a" * 32, "clean", 1, 0, 0, 0)
QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")


@pytest.mark.parametrize("generation", [1, 2, 7])
@pytest.mark.parametrize("epoch", [0, 1, 2, 11])
def test_the_parity_is_the_epochs(epoch: int, generation: int) -> None:
    """Rule 17: a producer that a decision names begins nothing before the next is finished.

    By generation it would be the same in two epochs that follow one another, and a repeated EndTxn
    for the first would make rows of the second visible that nobody has decided.
    """
    part = replace(PART, epoch=epoch, generation=generation)
    assert WriterId.of(part, slot=3).parity == epoch % 2
    following = WriterId.of(replace(part, epoch=epoch + 1), slot=3)
    assert str(following) != str(WriterId.of(part, slot=3))


def test_nothing_that_grows_is_in_an_id() -> None:
    """The broker remembers each id for a week; so generation, attempt and part are not in it."""
    same = WriterId.of(PART, slot=3)
    for other in (
        replace(PART, generation=9),
        replace(PART, partition=5),
        replace(PART, attempt=4),
        replace(PART, epoch=8),
    ):
        assert WriterId.of(other, slot=3) == same
    assert WriterId.of(PART, slot=4) != same
    assert WriterId.of(replace(PART, sink="other"), slot=3) != same


def test_a_writer_belongs_to_one_incarnation() -> None:
    writer = WriterId.of(PART, slot=3)
    assert writer.belongs_to(QUERY)
    assert not writer.belongs_to(replace(QUERY, incarnation="b" * 32))
    assert not writer.belongs_to(replace(QUERY, name="other"))


def test_ids_survive_their_text_and_foreign_text_is_not_read() -> None:
    writer = WriterId("orders", "a" * 32, "clean", 17, 1)
    assert WriterId.parse(str(writer)) == writer
    text = str(writer)
    for strange in (
        "",
        "orders",
        f"{text}~1",
        text.replace("~17~", "~x~"),
        f"{text[:-1]}2",
        text.replace("beadline-txn", "somebody"),
    ):
        assert WriterId.parse(strange) is None


def test_a_transaction_is_known_by_id_producer_and_epoch() -> None:
    """Where its marker lies may have changed; which transaction it is may not."""
    part = KafkaPart("id", 7, 3, "markers")
    assert part.is_same(replace(part, control_topic="elsewhere"))
    for other in (
        replace(part, producer_id=8),
        replace(part, producer_epoch=4),
        replace(part, transactional_id="other"),
    ):
        assert not part.is_same(other)


def test_a_marker_is_the_proof_of_its_own_transaction_only() -> None:
    """The same writer continues under the same id, with the producer's epoch raised."""
    part = KafkaPart("id", 7, 3, "markers")
    marker = Marker(part.transaction, PART)
    assert marker.is_of(part)
    assert not marker.is_of(replace(part, producer_epoch=4))
    assert not marker.is_of(replace(part, producer_id=8))
    assert Marker.read(b"id", marker.to_bytes()) == marker
    for strange in (None, b"", b"[]", b"{}", b"not JSON"):
        assert Marker.read(b"id", strange) is None
