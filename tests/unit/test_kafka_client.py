"""Ending transactions from the driver: what follows from the brokers' answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

pytest.importorskip("kafka")

from beadline.sinks.kafka import client
from beadline.sinks.kafka.client import (
    NO_ERROR,
    UNANSWERED,
    Answers,
    Transaction,
    TransactionClient,
)
from beadline.sinks.kafka.topics import TopicIds

ONE, OTHER = Transaction("one", 1, 0), Transaction("other", 2, 0)
BUSY = "CONCURRENT_TRANSACTIONS"


class Scripted(TransactionClient):
    """Brokers that answer as they are told, for each request in turn."""

    def __init__(self, *script: tuple[str, str | dict[Transaction, str]]) -> None:
        self._unanswered = set()
        self.script = list(script)

    def _each(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Any],
        topics: Collection[str],
    ) -> tuple[Answers, TopicIds | None]:
        if not transactions:
            return {}, {}
        kind, said = self.script.pop(0)
        asked = request(transactions[0])
        ends = {True: "commit", False: "abort"}
        committed = getattr(asked, "committed", None)
        assert kind == ("fence" if committed is None else ends[committed])
        if isinstance(said, str):
            return dict.fromkeys(transactions, said), {}
        assert set(said) == set(transactions)
        return dict(said), {}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWER_TIMEOUT_S", 0.2)


def test_a_commit_that_is_answered_leaves_its_producer_alone() -> None:
    brokers = Scripted(("commit", NO_ERROR))
    assert brokers.commit([ONE, OTHER])[0] == {ONE: NO_ERROR, OTHER: NO_ERROR}
    assert brokers.script == []


def test_a_commit_without_an_answer_ends_its_producer() -> None:
    """Rule 17: it may arrive when the next transaction is open. Once, and only that producer."""
    brokers = Scripted(
        ("commit", {ONE: UNANSWERED, OTHER: NO_ERROR}),
        ("commit", NO_ERROR),
        ("fence", {ONE: NO_ERROR}),
        ("commit", NO_ERROR),
    )
    assert brokers.commit([ONE, OTHER])[0] == {ONE: UNANSWERED, OTHER: NO_ERROR}
    assert brokers.commit([ONE, OTHER])[0] == {ONE: NO_ERROR, OTHER: NO_ERROR}
    assert brokers.commit([ONE])[0] == {ONE: NO_ERROR}
    assert brokers.script == []


@pytest.mark.parametrize("said", [BUSY, UNANSWERED, "UNKNOWN"])
def test_until_its_producer_is_ended_nothing_is_known(said: str) -> None:
    brokers = Scripted(
        ("commit", UNANSWERED),
        ("commit", NO_ERROR),
        ("fence", said),
        ("commit", NO_ERROR),
        ("fence", "PRODUCER_FENCED"),
    )
    answers = [brokers.commit([ONE])[0][ONE] for _ in range(3)]
    assert answers == [UNANSWERED, UNANSWERED, NO_ERROR]
    assert brokers.script == []


def test_an_abort_spares_whoever_took_the_name_over() -> None:
    brokers = Scripted(
        ("abort", {ONE: "INVALID_PRODUCER_EPOCH", OTHER: NO_ERROR}),
        ("fence", {OTHER: BUSY}),
        ("fence", {OTHER: NO_ERROR}),
    )
    assert brokers.abort([ONE, OTHER, ONE]) == {ONE: "INVALID_PRODUCER_EPOCH", OTHER: NO_ERROR}
    assert brokers.script == []


def test_a_broker_that_is_busy_for_ever_is_not_waited_for() -> None:
    asked = []

    def busy(some: Sequence[Transaction]) -> Answers:
        asked.append(some)
        return dict.fromkeys(some, BUSY)

    assert Scripted().until_answered(busy, [ONE]) == {ONE: BUSY}
    assert len(asked) > 1
