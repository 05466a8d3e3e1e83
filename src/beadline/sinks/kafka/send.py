"""Sending a part's batches: refuse what cannot be sent, queue the rest in order, and wait for room.

Whole batches go to librdkafka natively; headers, which its batch call does not know, go row by row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from beadline.sink import Part, refuse
from beadline.sinks.kafka import native, rows
from beadline.sinks.kafka.native import Messages
from beadline.sinks.kafka.producers import Producer
from beadline.sinks.kafka.topics import Missing, Topics

if TYPE_CHECKING:
    import pyarrow as pa

_DRAIN_FACTOR = 3


class Sending:
    """One part on its way."""

    def __init__(self, topic: str | None, part: Part, producer: Producer) -> None:
        self._topic = topic
        self._part = part
        self._producer = producer
        self._topics = Topics(topic, producer)
        self._messages = Messages()
        self._queueing_s = 0.0
        self._drain_s = 0.0

    @property
    def topics(self) -> tuple[tuple[str, str], ...]:
        """The topics that rows were sent to, with the ids that they had before."""
        return self._topics.used

    def send(self, batch: pa.RecordBatch) -> None:
        """Queue a batch; returns when librdkafka has its own copy of every row."""
        batch = self._without_refused(batch)
        if batch.num_rows == 0:
            return
        self._drain_s, self._queueing_s = _DRAIN_FACTOR * self._queueing_s, 0.0
        for found in rows.records(batch, self._topic):
            try:
                self._topics.partitions(found.topic)
                records = self._without_unknown(found)
            except Missing as why:
                self._part.refuse(found.rows, str(why))
                continue
            if not len(records):
                continue
            if records.headers is not None or self._producer.batches is None:
                self._send_slowly(records)
            else:
                self._send_natively(records)

    def _without_refused(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Refuse what can be known without asking Kafka."""
        import pyarrow.compute as pc

        if self._topic is None:
            odd = rows.odd_topics(batch.column(rows.TOPIC))
            batch = self._refuse(batch, odd, "its topic is not a valid Kafka topic name")
            topics = batch.column(rows.TOPIC)
            bad = pc.fill_null(pc.equal(pc.binary_length(topics), 0), True)
            batch = self._refuse(batch, bad, "it has no topic")
        if rows.PARTITION in batch.schema.names:
            partitions = batch.column(rows.PARTITION)
            bad = pc.fill_null(pc.less(partitions, 0), False)
            batch = self._refuse(batch, bad, "its partition is negative")
        if rows.largest(batch) <= self._producer.record_bytes_max:
            return batch
        large = pc.greater(rows.sizes(batch), self._producer.record_bytes_max)
        why = f"it is larger than message.max.bytes ({self._producer.record_bytes_max})"
        return self._refuse(batch, large, why)

    def _refuse(self, batch: pa.RecordBatch, bad: Any, reason: str) -> pa.RecordBatch:
        return refuse(batch, bad, reason, self._part)

    def _without_unknown(self, records: rows.Records) -> rows.Records:
        """Refuse rows for partitions that the topic does not have.

        librdkafka refuses them too, but in a batch it continues to count them as queued, so that no
        flush ever ends.
        """
        import pyarrow.compute as pc

        if records.partitions is None:
            return records
        highest = pc.max(records.partitions).as_py()
        count = self._topics.partitions(records.topic)
        if highest is not None and highest >= count:
            self._topics.forget(records.topic)
            count = self._topics.partitions(records.topic)
        bad = pc.fill_null(pc.greater_equal(records.partitions, count), False)
        reason = f"topic {records.topic!r} has {count} partitions, and not that one"
        return rows.to_topic(self._refuse(records.rows, bad, reason), records.topic)

    def _send_natively(self, records: rows.Records) -> None:
        assert self._producer.batches is not None
        found = self._messages.of(records.values, records.keys, records.partitions)
        begin = 0
        self._drain()
        deadline_s = self._producer.room_deadline_s()
        while begin < len(found):
            rest = found[begin:]
            began_s = time.monotonic()
            good = self._producer.batches.send(
                records.topic, rest, partitions=records.partitions is not None
            )
            self._queueing_s += time.monotonic() - began_s
            self._producer.poll(0)
            if good == len(rest):
                return
            full = int((rest["err"] == native.QUEUE_FULL).sum())
            self._refuse_failed(records, begin, rest[: len(rest) - full])
            begin += len(rest) - full
            if full:
                self._producer.wait_for_room(deadline_s)

    def _drain(self) -> None:
        """Let librdkafka's own thread send the last batch before the next one is queued.

        While one thread queues and the other sends, each record costs both of them a lock that the
        other holds and memory that the other has just had, and where records wait for the answer to
        those before, librdkafka spins: twice the CPU for the same records. One after the other they
        lose little, as the next rows are read meanwhile. A broker that is far away is not waited
        for: at most some times as long as queueing the last batch took.
        """
        if self._drain_s:
            self._producer.client.flush(self._drain_s)
            self._drain_s = 0.0

    def _refuse_failed(self, records: rows.Records, begin: int, sent: Any) -> None:
        """Refuse rows that librdkafka did not take; anything but the row's own fault is an error.

        A queue that is full stops everything behind it, so what failed otherwise came before.
        """
        import pyarrow as pa
        from confluent_kafka import KafkaError, KafkaException

        (failed,) = sent["err"].nonzero()
        for index in failed:
            error = KafkaError(int(sent["err"][index]))
            code = error.code()
            if code not in (KafkaError._UNKNOWN_PARTITION, KafkaError.MSG_SIZE_TOO_LARGE):
                raise KafkaException(error)
            row = records.rows.take(pa.array([begin + int(index)]))
            self._part.refuse(row, error.str())

    def _send_slowly(self, records: rows.Records) -> None:
        """Row by row, for what the batch call does not know."""
        from confluent_kafka import KafkaError, KafkaException

        headers = rows.header_lists(records.headers) if records.headers is not None else None
        keys = rows.undecoded(records.keys).to_pylist() if records.keys is not None else None
        partitions = records.partitions.to_pylist() if records.partitions is not None else None
        for index, value in enumerate(rows.undecoded(records.values).to_pylist()):
            wanted = partitions[index] if partitions is not None else None
            options = {"headers": headers[index]} if headers is not None else {}
            if isinstance(options.get("headers"), str):  # why there are none
                self._part.refuse(records.rows.slice(index, 1), str(options["headers"]))
                continue
            try:
                self._producer.produce(
                    records.topic,
                    value=value,
                    key=keys[index] if keys is not None else None,
                    partition=native.ANY_PARTITION if wanted is None else wanted,
                    **options,
                )
            except KafkaException as error:
                code = error.args[0].code()
                if code not in (KafkaError._UNKNOWN_PARTITION, KafkaError.MSG_SIZE_TOO_LARGE):
                    raise
                self._part.refuse(records.rows.slice(index, 1), error.args[0].str())
        self._producer.poll(0)
