"""Transactions from outside: end, fence, describe and list them, from any process.

librdkafka ends only transactions that it began itself, so this speaks to the transaction
coordinators directly, through kafka-python's protocol classes. Its private names stay in this
module. A broker with two-phase commit of its own (KIP-939) would come in here too: it makes
``InitProducerId`` keep a prepared transaction, and ``Client.end`` is the one place to change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from beadline.extras import require
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka import topic_ids
from beadline.sinks.kafka.topic_ids import TopicIds

# EndTxn above this version moves the producer's epoch on, and librdkafka cannot follow (FACTS).
_END_VERSION_MAX = 4
_INIT_VERSION_MAX = 5
_REQUEST_TIMEOUT_S = 10.0
UNANSWERED = "UNANSWERED"
NO_ERROR = "NO_ERROR"
OPEN_STATES = ("Ongoing",)
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
GONE = frozenset({"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})


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


class Client:
    """A connection to the brokers of one cluster. Safe to use from several threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Connect, or raise kafka-python's error and leave nothing behind.

        Where no broker answers, kafka-python's own thread and sockets would live on, each time.
        """
        require("kafka")
        from kafka import KafkaAdminClient

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

    def end(self, transactions: Sequence[Transaction], commit: bool) -> dict[Transaction, str]:
        """Commit or abort, many at once; answer with the broker's error name of each."""
        return self.end_and_look(transactions, commit, ())[0]

    def end_and_look(
        self, transactions: Sequence[Transaction], commit: bool, topics: Collection[str]
    ) -> tuple[dict[Transaction, str], TopicIds | None]:
        """The same, and the ids of topics, asked for at the same time: no round trip of its own.

        None for the ids where they could not be had.
        """
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

    def topic_ids(self, topics: Collection[str]) -> TopicIds:
        """Ask for the ids of topics; one that does not exist is left out."""

        async def ask() -> TopicIds:
            return topic_ids.answered(await self._admin._manager.send(topic_ids.request(topics)))

        found: TopicIds = self._retry(lambda: self._admin._manager.run(ask))
        return found

    def fence(
        self, transactions: Sequence[Transaction], timeout_ms: int = 10_000
    ) -> dict[Transaction, str]:
        """Abort what is open and let no writer that still lives begin anew (rule 21).

        Only if id and epoch of the producer are still these: whoever took the name over since, a
        newer generation, is left alone, and the answer is one of ``GONE``. The broker wants a
        timeout below its maximum, for the transactions that nobody will begin.
        """
        from kafka.protocol.producer.transaction import InitProducerIdRequest

        def request(transaction: Transaction) -> Any:
            return InitProducerIdRequest(
                transactional_id=transaction.id,
                transaction_timeout_ms=timeout_ms,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                max_version=_INIT_VERSION_MAX,
            )

        return self._each(transactions, request)[0]

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

        found: list[str] = self._retry(ask)
        return found

    def _each(
        self,
        transactions: Sequence[Transaction],
        request: Callable[[Transaction], Any],
        topics: Collection[str] = (),
    ) -> tuple[dict[Transaction, str], TopicIds | None]:
        """Send one request per transaction to its coordinator, all at once, and wait for all."""
        answers = dict.fromkeys(transactions, UNANSWERED)
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
            looking = self._admin._manager.send(topic_ids.request(topics)) if topics else None
            for transaction, future in waiting.items():
                try:
                    answers[transaction] = _name((await future).error_code)
                except Exception:  # noqa: BLE001 (whatever it was, no answer came)
                    self._forget(transaction.id)
                    continue
                if answers[transaction] == "NOT_COORDINATOR":
                    self._forget(transaction.id)
            if looking is not None:
                with suppress(Exception):  # not told; the caller asks again
                    ids = topic_ids.answered(await looking)

        try:
            if transactions:
                self._admin._manager.run(ask)
        except Exception:  # noqa: BLE001 (no coordinator known: nothing was sent or answered)
            for transaction in transactions:
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

    def _retry(self, ask: Callable[[], Any]) -> Any:
        """Ask again for a while: a broker may be starting, or a connection may have gone stale."""
        pause = threading.Event()
        for wait_s in (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0, 5.0):
            try:
                return ask()
            except Exception:  # noqa: BLE001 (the last try is not caught)
                self._admin._manager.cluster._coordinators.clear()
                pause.wait(wait_s)
        return ask()


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


_clients: dict[tuple[int, str], Client] = {}
_lock = threading.Lock()


def connect(servers: str, options: kafka_options.Options, timeout_s: float = 0) -> Client:
    """Return this process's client of a cluster, connected once."""
    key = (os.getpid(), repr((servers, sorted(options.items()))))
    with _lock:
        client = _clients.get(key)
        if client is None:
            settings = kafka_options.admin(servers, options, timeout_s or _REQUEST_TIMEOUT_S)
            client = _clients[key] = Client(settings)
    return client
