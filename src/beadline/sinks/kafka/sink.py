"""``KafkaSink``: each row is one record, visible once to every ``read_committed`` reader.

Executors produce inside transactions and flush; the committable names the transaction, and the
driver ends it after the decision, from its own process. See ``producers`` for the executors' side,
``client`` for the driver's, ``markers`` for how a lost transaction is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from beadline.sink import (
    Capabilities,
    CommitResult,
    EpochId,
    Guarantee,
    Outcome,
    Part,
    PartId,
    Prepared,
    QueryId,
    Seen,
    Sink,
    name_from,
    reach,
)
from beadline.sinks.kafka import rows as kafka_rows
from beadline.sinks.kafka.access import NOT_AUTHORIZED, denied, login_refused, no_access
from beadline.sinks.kafka.check import check_cluster
from beadline.sinks.kafka.client import (
    FENCED,
    NO_ERROR,
    NOT_NOW,
    OPEN_STATES,
    UNANSWERED,
    Described,
    Transaction,
    connect,
)
from beadline.sinks.kafka.markers import NoMarker, Reader, create_control_topic, never_known
from beadline.sinks.kafka.part import KafkaPart, WriterId, default_control_topic
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.send import Sending
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.sinks.kafka.topics import recreated, rows_gone, topics_of

if TYPE_CHECKING:
    import pyarrow as pa

_INSTANCE_TIMEOUT_S = 5.0  # a connection may have gone stale; an outage is waited for by commit


@dataclass(frozen=True)
class KafkaSink(Sink[KafkaPart]):
    """Rows to a Kafka topic, in the columns of Spark's own Kafka sink.

    ``value`` (string or binary) is needed; ``key``, ``partition``, ``headers`` and, unless
    ``topic`` is given, ``topic`` may be there. ``options`` are librdkafka's (SASL, TLS, ...).
    ``transaction_timeout_s`` is how long the brokers keep a decided epoch while everything of
    Beadline is down; after it the epoch has to be computed again. ``control_topic`` is created if
    it is not there; ``beadline-<query>`` unless given.

    >>> KafkaSink("orders-clean", bootstrap_servers="localhost:9092")
    KafkaSink(orders-clean)
    """

    topic: str | None = None
    bootstrap_servers: str = ""
    transaction_timeout_s: float = 900.0
    control_topic: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    dead_letter_columns: ClassVar[tuple[str, ...]] = ("value",)

    @property
    def default_name(self) -> str:
        """The topic's name."""
        return name_from("kafka", self.topic if self.topic is not None else "kafka")

    @property
    def settings(self) -> KafkaSettings:
        """What every client of this cluster is told."""
        return KafkaSettings(self.bootstrap_servers, self.options, self.transaction_timeout_s)

    def control_topic_of(self, query: str) -> str:
        """Return where the markers of a query go."""
        return self.control_topic or default_control_topic(query)

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Do the columns fit, is the cluster there, does the topic exist, does the timeout fit?"""
        columns = kafka_rows.check_schema(schema, self.topic)
        cluster = check_cluster(self.settings, self.topic)
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each row is one record that read_committed consumers see once, in order per "
            "key within a part.",
            target=f"kafka:{cluster.id}/{self.topic if self.topic is not None else '*'}",
            expires=True,
            expires_after_s=float(self.transaction_timeout_s),
            holds_up=True,
            timeout_setting="transaction_timeout_s of KafkaSink (and the broker's "
            "transaction.max.timeout.ms)",
            publishes=True,
            columns=columns,
            instance=cluster.topic_id,
            start_over=f"delete topic {self.control_topic_of(query.name)!r} and what you want to "
            "write again",
        )

    def open(self, query: QueryId, name: str) -> None:
        """Create the control topic."""
        name = self.control_topic_of(query.name)
        create_control_topic(self.settings, name, query.name, self.topic)

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> KafkaPart | None:
        """Produce in a transaction, flush, and leave it open."""
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return None
        control_topic = self.control_topic_of(part.id.query)
        writer = pool().begin(self.settings, control_topic, part)
        try:
            reach("kafka.begun")
            sending = Sending(self.topic, part, writer.producer)
            sending.send(first)
            for batch in rows:
                sending.send(batch)
            reach("kafka.sent")
            prepared = writer.prepared(sending.topics)
        except BaseException:
            pool().discard(part)
            raise
        reach("kafka.prepared")
        return prepared

    def publish(self, rows: Iterator[pa.RecordBatch], part: Part) -> None:
        """Produce without a transaction, and wait until the brokers have everything."""
        first = next((batch for batch in rows if batch.num_rows), None)
        if first is None:
            return
        producer = pool().plain(self.settings)
        try:
            sending = Sending(self.topic, part, producer)
            sending.send(first)
            for batch in rows:
                sending.send(batch)
            producer.flush(str(part.id))
            producer.check()
        except BaseException:
            pool().discard_plain(self.settings)
            raise

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[KafkaPart]]) -> CommitResult:
        """End every transaction, all at once; where the broker only says no, look for the proof."""
        try:
            client = connect(self.settings)
        except Exception as error:  # noqa: BLE001 (kafka-python's; no broker to ask is no answer)
            self._check_access(epoch, parts)
            said_so = f"no broker answered: {type(error).__name__}"
            return CommitResult.all(parts, Outcome.UNKNOWN, said_so)
        by_name = {part.committable.transaction: part for part in parts}
        answers, ids = client.commit(list(by_name), topics_of(parts))
        self._check_access(epoch, parts, answers.values())
        outcomes: dict[PartId, Outcome] = {}
        doubtful: list[Prepared[KafkaPart]] = []
        for transaction, answer in answers.items():
            part = by_name[transaction]
            if answer == NO_ERROR:
                outcomes[part.id] = Outcome.COMMITTED
            elif answer in NOT_NOW:
                outcomes[part.id] = Outcome.UNKNOWN
            else:
                doubtful.append(part)
        outcomes.update(self._proven(epoch, doubtful))
        shown = (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
        ended = [part for part in parts if outcomes[part.id] in shown]
        try:
            wrong = recreated(client, ended, ids)
        except Exception as error:  # noqa: BLE001 (kafka-python's; no broker to ask is no answer)
            outcomes.update({part.id: Outcome.UNKNOWN for part in ended})
            return CommitResult(outcomes, f"topics cannot be asked for: {type(error).__name__}")
        if wrong:
            raise rows_gone(epoch, ended[0].id.sink, ended, wrong, self.topic)
        said = set(answers.values()) - {NO_ERROR}
        return CommitResult(outcomes, f"Kafka answered {', '.join(sorted(said))}" if said else "")

    def _check_access(
        self,
        epoch: EpochId,
        parts: Sequence[Prepared[KafkaPart]],
        answers: Collection[str] = (UNANSWERED,),
    ) -> None:
        """Raise where nothing but a person helps: the brokers refuse this user."""
        why = next((answer for answer in answers if answer in NOT_AUTHORIZED), "")
        if not why and UNANSWERED in answers:
            why = login_refused(self.settings)
        if why:
            raise no_access(epoch, parts[0].id.sink, self.settings.servers, why)

    def _proven(
        self, epoch: EpochId, parts: Sequence[Prepared[KafkaPart]]
    ) -> dict[PartId, Outcome]:
        """Find out by the markers what became of transactions that the broker does not know."""
        if not parts:
            return {}
        reach("kafka.proof")
        from confluent_kafka import KafkaException

        fates: dict[PartId, bool | None] = {}
        reader = Reader(self.settings)
        for topic in {part.committable.control_topic for part in parts}:
            some = {p.id: p.committable for p in parts if p.committable.control_topic == topic}
            try:
                fates |= reader.fates(topic, some)
            except (KafkaException, TimeoutError) as error:  # no broker to ask: no answer yet
                self._check_access(epoch, parts, [denied(error)])
                fates |= dict.fromkeys(some)
            except NoMarker as error:
                raise never_known(epoch, parts[0].id.sink, error) from None
        meaning = {True: Outcome.ALREADY_COMMITTED, False: Outcome.LOST, None: Outcome.UNKNOWN}
        return {part.id: meaning[fates[part.id]] for part in parts}

    def abort(self, parts: Sequence[Prepared[KafkaPart]]) -> None:
        """Fence each writer, which aborts its transaction; a newer owner of the name stays."""
        self._fence([part.committable.transaction for part in parts])

    def _fence(self, transactions: Sequence[Transaction]) -> None:
        answers = connect(self.settings).abort(transactions)
        if left := [answer for answer in answers.values() if answer not in FENCED]:
            said = ", ".join(sorted(left))
            raise OSError(f"Kafka did not abort {len(left)} transactions, but said {said}")

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[KafkaPart]]:
        """List the query's open transactions; their markers tell which parts they are.

        Those of all its sinks on this cluster, also of names no longer in the query (rule 27).
        """
        described = self._described(query, OPEN_STATES)
        open_now = [one for one in described if one.state in OPEN_STATES]  # may have ended since
        if not open_now:
            return []
        topic = self.control_topic_of(query.name)
        markers = Reader(self.settings).open_now(topic)
        parts = {marker.transaction: marker.part for marker in markers}
        found = []
        for one in open_now:
            writer = WriterId.parse(one.transaction.id)
            assert writer is not None
            # A marker of the same producer may be that of its transaction before.
            marked = any(name == topic for name, _ in one.partitions)
            id_ = parts.get(one.transaction) if marked else None
            part = KafkaPart.of(one.transaction, topic)
            found.append(Prepared(id_ or writer.unknown_part(), 0, part))
        return found

    def _described(
        self, query: QueryId, states: Sequence[str] = (), sink: str = ""
    ) -> list[Described]:
        """Ask the coordinators about the query's transactional ids, of one sink or of all."""
        client = connect(self.settings)
        ids = []
        for name in client.list(states):
            writer = WriterId.parse(name)
            if writer is not None and writer.belongs_to(query) and sink in ("", writer.sink):
                ids.append(name)
        return list(client.describe(ids).values())

    def close(self, query: QueryId, name: str) -> Callable[[], None]:
        """Fence every writer of this sink, so that a task that dies slowly opens nothing more.

        As they are now: a newer start raises their producers' epochs, and is left alone.
        """
        writers = [one.transaction for one in self._described(query, sink=name)]
        return partial(self._fence, writers)

    def instance_now(self) -> str:
        """The id of the sink's own topic; a reused producer knows the one of before."""
        if self.topic is None:
            return ""
        try:
            ids = connect(self.settings).topic_ids([self.topic], _INSTANCE_TIMEOUT_S)
        except Exception:  # noqa: BLE001 (kafka-python's; commit asks again, and waits for brokers)
            return ""
        return ids.get(self.topic, "")

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """What the newest visible marker of any query of this name says."""
        topic = self.control_topic_of(query.name)
        markers = Reader(self.settings).newest(topic, query.name)
        if not markers:
            return None
        incarnation = markers[-1].part.incarnation
        newest = max(m.part.epoch for m in markers if m.part.incarnation == incarnation)
        return Seen(incarnation, newest)
