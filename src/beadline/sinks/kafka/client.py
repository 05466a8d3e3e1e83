"""Transactions from outside: end, fence, describe and list them, from any process.

librdkafka ends only transactions that it began itself, so this speaks to the transaction
coordinators directly, through kafka-python's protocol classes. Its private names stay in this
module. A broker with two-phase commit of its own (KIP-939) would come in here too: it makes
``InitProducerId`` keep a prepared transaction, and ``TransactionClient.commit`` is the one place to
change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from beadline.sink import Retries, Verdict, reach, require, retry
from beadline.sinks.kafka import topics as kafka_topics
from beadline.sinks.kafka.access import denied
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.sinks.kafka.topics import TopicIds

# EndTxn above this version advances the producer's epoch, and librdkafka cannot follow.
_END_VERSION_MAX = 4
_INIT_VERSION_MAX = 5
_REQUEST_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 30.0  # a broker may be starting, or a connection may have gone stale
# Of transactions that will never begin, under an id that is fenced; the broker requires one below
# its maximum, and none of ours may be shorter.
_FENCED_TIMEOUT_MS = 1_000

UNANSWERED = "UNANSWERED"
NO_ERROR = "NO_ERROR"
OPEN_STATES = ("Ongoing",)
UNENDED_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
# The broker says: not now, or not here. Nothing was changed by the request.
NOT_NOW = frozenset(
    {
        UNANSWERED,
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "NOT_ENOUGH_REPLICAS",
        "UNKNOWN",  # an unexpected error inside the broker
    }
)
# The broker says: the producer that you mean is not there any more.
PRODUCER_GONE = frozenset(
    {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
)
FENCED = PRODUCER_GONE | {NO_ERROR}

T = TypeVar("T")


@dataclass(frozen=True)
class Transaction:
    """Which transaction is meant: an id may have had many."""

    id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class Described:
    """What the coordinator says of an id."""

    transaction: Transaction
    state: str
    started_at_ms: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]


Answers = dict[Transaction, str]
"""The broker's error name for each transaction that it was asked about."""


class TransactionClient:
    """A connection to the brokers of one cluster. Safe to use from several threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Connect, or raise kafka-python's error and leave nothing behind.

        Where no broker answers, kafka-python's own thread and sockets would live on, each time.
        """
        require("kafka")
        from kafka import KafkaAdminClient

        self._unanswered: set[Transaction] = set()
        self._admin: Any = KafkaAdminClient.__new__(KafkaAdminClient)
        try:
            self._admin.__init__(**settings)
        except BaseException:
            if hasattr(self._admin, "_net"):
                self._admin._closed = False  # it is set at the end only, and close() goes by it
                self._admin.close()
            raise

    @property
    def admin(self) -> Any:
        """The admin client itself, for its public methods."""
        return self._admin

    def close(self) -> None:
        """End the connection and its thread."""
        self._admin.close()

    def commit(
        self, transactions: Sequence[Transaction], topics: Collection[str] = ()
    ) -> tuple[Answers, TopicIds | None]:
        """Commit, many at once; and tell the ids of topics, in no round trip of their own.

        A request that got no answer may still arrive, when its producer has begun its next
        transaction. So where one was not answered, here or before, and the transaction is known to
        be committed now, its producer is ended; until that is done the answer is ``UNANSWERED``
        (rule 17). None for the ids where they could not be had.
        """
        reach("kafka.commit")
        answers, ids = self._end(transactions, commit=True, topics=topics)
        reach("kafka.answered")
        self._unanswered.update(one for one, said in answers.items() if said == UNANSWERED)
        late = [one for one, said in answers.items() if said == NO_ERROR]
        late = [one for one in late if one in self._unanswered]
        if late:
            reach("kafka.end_writer")
            for one, said in self.fence(late).items():
                if said in FENCED:
                    self._unanswered.discard(one)
                else:
                    answers[one] = UNANSWERED
        return answers, ids

    def abort(self, transactions: Sequence[Transaction]) -> Answers:
        """Abort what is open, and fence its writer, however long the brokers take (rule 21).

        Where a transaction is open, ``InitProducerId``, which fences, ignores the producer's epoch;
        ``EndTxn`` compares it. So what is open is ended first, and what is no longer there is not
        fenced: a new owner of the id is left alone.
        """
        transactions = list(dict.fromkeys(transactions))
        if transactions:
            reach("kafka.fence")
        answers = self.end(transactions, commit=False)
        left = [one for one, said in answers.items() if said not in PRODUCER_GONE]
        return {**answers, **self.until_answered(self.fence, left)}

    def end(self, transactions: Sequence[Transaction], commit: bool) -> Answers:
        """Ask once, many at once, and leave the answers to the caller."""
        return self._end(transactions, commit, ())[0]

    def fence(self, transactions: Sequence[Transaction]) -> Answers:
        """Abort what is open and keep any live writer from beginning again (rule 21); asks once.

        Only if id and epoch of the producer are still these: a newer generation that has taken over
        the name is left alone, and the answer is one of ``PRODUCER_GONE``.
        """
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        def request(transaction: Transaction) -> Any:
            return InitProducerIdRequest(
                transactional_id=transaction.id,
                transaction_timeout_ms=_FENCED_TIMEOUT_MS,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                max_version=_INIT_VERSION_MAX,
            )

        return self._each(transactions, request, ())[0]

    def until_answered(
        self, ask: Callable[[Sequence[Transaction]], Answers], transactions: Sequence[Transaction]
    ) -> Answers:
        """Ask about those to which the broker says "not now", until it does or time is up."""
        answers: Answers = {}
        left = list(dict.fromkeys(transactions))
        retries = Retries({Verdict.BUSY: _ANSWER_TIMEOUT_S})
        while left:
            answers.update(ask(left))
            left = [one for one in left if answers[one] in NOT_NOW]
            if left and not retries.again(Verdict.BUSY):
                break
        return answers

    def topic_ids(self, topics: Collection[str], timeout_s: float = _START_TIMEOUT_S) -> TopicIds:
        """Ask for the ids of topics; one that does not exist is left out."""

        async def ask() -> TopicIds:
            response = await self._admin._manager.send(kafka_topics.ids_request(topics))
            return kafka_topics.ids_answered(response)

        found: TopicIds = self._retry(lambda: self._admin._manager.run(ask), timeout_s)
        return found

    def describe(self, ids: Iterable[str]) -> dict[str, Described]:
        """Ask the coordinators; an id that they do not know is left out."""
        from kafka.protocol.admin import DescribeTransactionsRequest

        found: dict[str, Described] = {}
        wanted = list(dict.fromkeys(ids))

        async def ask() -> None:
            nodes = await self._coordinators(wanted)
            by_node: dict[Any, list[str]] = {}
            for id_, node in nodes.items():
                by_node.setdefault(node, []).append(id_)
            for node, some in by_node.items():
                request = DescribeTransactionsRequest(transactional_ids=some)
                response = await self._admin._manager.send(request, node_id=node)
                for state in response.transaction_states:
                    if state.error_code == 0:
                        found[state.transactional_id] = _described(state)
                    elif _name(state.error_code) != "TRANSACTIONAL_ID_NOT_FOUND":
                        raise OSError(f"{state.transactional_id}: {_name(state.error_code)}")

        if wanted:
            self._retry(lambda: self._admin._manager.run(ask))
        return found

    def list(self, states: Sequence[str] = ()) -> list[str]:
        """Return the transactional ids that any broker knows, in these states or in all."""

        def ask() -> list[str]:
            by_broker = self._admin.list_transactions(state_filters=list(states) or None)
            return [one.transactional_id for listed in by_broker.values() for one in listed]

        return self._retry(ask)

    def _end(
        self, transactions: Sequence[Transaction], commit: bool, topics: Collection[str]
    ) -> tuple[Answers, TopicIds | None]:
        from kafka.protocol.producer.transaction import EndTxnRequest

        def request(transaction: Transaction) -> Any:
            return EndTxnRequest(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                committed=commit,
                max_version=_END_VERSION_MAX,
            )

        return self._each(transactions, request, topics)

    def _each(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Any],
        topics: Collection[str],
    ) -> tuple[Answers, TopicIds | None]:
        """Send one request per transaction to its coordinator, all at once, and wait for all."""
        answers: Answers = dict.fromkeys(transactions, UNANSWERED)
        ids: TopicIds | None = None if topics else {}

        async def ask() -> None:
            nonlocal ids
            nodes = await self._coordinators([transaction.id for transaction in transactions])
            waiting = {
                transaction: self._admin._manager.send(
                    request(transaction), node_id=nodes[transaction.id]
                )
                for transaction in transactions
                if transaction.id in nodes
            }
            # Behind them: they are waited for, and a broker takes one after the other.
            looking = None
            if topics:
                looking = self._admin._manager.send(kafka_topics.ids_request(topics))
            for transaction, future in waiting.items():
                try:
                    answers[transaction] = _name((await future).error_code)
                except Exception as error:  # noqa: BLE001 (else, no answer came)
                    answers[transaction] = denied(error) or UNANSWERED
                    self._forget(transaction.id)
                    continue
                if answers[transaction] == "NOT_COORDINATOR":
                    self._forget(transaction.id)
            if looking is not None:
                with suppress(Exception):  # not told; the caller asks again
                    ids = kafka_topics.ids_answered(await looking)

        try:
            if transactions:
                self._admin._manager.run(ask)
        except Exception as error:  # noqa: BLE001 (no coordinator known: nothing was sent)
            for transaction in transactions:
                answers[transaction] = denied(error) or UNANSWERED
                self._forget(transaction.id)
        return answers, ids

    async def _coordinators(self, ids: Sequence[str]) -> dict[str, Any]:
        from kafka.protocol.metadata import CoordinatorType

        found = await self._admin._find_coordinator_ids(ids, key_type=CoordinatorType.TRANSACTION)
        return {id_: node for id_, node in found.items() if node is not None and node != -1}

    def _forget(self, id_: str) -> None:
        from kafka.protocol.metadata import CoordinatorType

        cached = self._admin._manager.cluster._coordinators
        cached.pop((CoordinatorType.TRANSACTION, id_), None)

    def _retry(self, ask: Callable[[], T], timeout_s: float = _START_TIMEOUT_S) -> T:
        """Ask again for a while, unless the user may not: looking changes nothing."""

        def judge(error: Exception) -> Verdict:
            self._admin._manager.cluster._coordinators.clear()
            return Verdict.FINAL if denied(error) else Verdict.UNCLEAR

        return retry(ask, judge, {Verdict.UNCLEAR: timeout_s})


def _described(state: Any) -> Described:
    return Described(
        Transaction(state.transactional_id, state.producer_id, state.producer_epoch),
        state.transaction_state,
        state.transaction_start_time_ms,
        state.transaction_timeout_ms,
        tuple((topic.topic, number) for topic in state.topics for number in topic.partitions),
    )


def _name(code: int) -> str:
    """Return the broker's own name of an error code."""
    if code == 0:
        return NO_ERROR
    from kafka import errors

    found = errors.for_code(code)
    return str(getattr(found, "message", found.__name__))


_clients: dict[tuple[int, str], TransactionClient] = {}
_lock = threading.Lock()


def connect(settings: KafkaSettings, timeout_s: float = 0) -> TransactionClient:
    """Return this process's client of a cluster, connected once."""
    key = (os.getpid(), settings.key)
    with _lock:
        client = _clients.get(key)
        if client is None:
            made = settings.admin(timeout_s or _REQUEST_TIMEOUT_S)
            client = _clients[key] = TransactionClient(made)
    return client
