"""Rows to records: the column convention of Spark's own Kafka sink, as Arrow columns.

``value`` is needed; ``key``, ``topic``, ``partition`` and ``headers`` may be there; other columns
are not sent. Text and bytes are the same to Kafka. A row that no record can be made of, or that no
broker would take, is refused here, before anything of it is queued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from beadline.sink import BadSink

if TYPE_CHECKING:
    import pyarrow as pa

VALUE, KEY, TOPIC, PARTITION, HEADERS = "value", "key", "topic", "partition", "headers"
COLUMNS = (KEY, VALUE, TOPIC, PARTITION, HEADERS)
_OVERHEAD_BYTES = 100  # of a record beside key, value and headers; librdkafka counts 28 to 90


@dataclass(frozen=True)
class Records:
    """The records of one batch for one topic, in order."""

    topic: str
    values: pa.Array
    keys: pa.Array | None
    partitions: pa.Array | None
    headers: pa.Array | None
    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.values)


def check_schema(schema: pa.Schema, topic: str | None) -> tuple[str, ...]:
    """Return the columns that are sent, or raise with what does not fit."""
    import pyarrow.types as kinds

    def text_or_bytes(kind: Any) -> bool:
        plain = kinds.is_string(kind) or kinds.is_binary(kind)
        return bool(plain or kinds.is_large_string(kind) or kinds.is_large_binary(kind))

    def headers(kind: Any) -> bool:
        if not (kinds.is_list(kind) or kinds.is_large_list(kind)):
            return False
        item = kind.value_type
        if not kinds.is_struct(item) or item.num_fields != 2:
            return False
        return bool(kinds.is_string(item.field(0).type) and kinds.is_binary(item.field(1).type))

    rules = {
        VALUE: (text_or_bytes, "string or binary"),
        KEY: (text_or_bytes, "string or binary"),
        TOPIC: (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind), "string"),
        PARTITION: (kinds.is_int32, "int"),
        HEADERS: (headers, "array<struct<key: string, value: binary>>"),
    }
    names = schema.names
    if VALUE not in names:
        raise BadSink(
            f"Kafka needs a column 'value' (string or binary), and the rows have {names}. Make one "
            'with rows=: for example rows=lambda df: df.selectExpr("to_json(struct(*)) AS value").'
        )
    for name in names:
        fits, wanted = rules.get(name, (None, ""))
        if fits is not None and not fits(schema.field(name).type):
            found = schema.field(name).type
            raise BadSink(f"Kafka needs column {name!r} to be {wanted}, and it is {found}.")
    if topic is None and TOPIC not in names:
        raise BadSink("Kafka needs a topic: KafkaSink(topic, ...), or a column 'topic' per row.")
    return tuple(n for n in names if n in COLUMNS and not (n == TOPIC and topic is not None))


def records(batch: pa.RecordBatch, topic: str | None) -> Iterator[Records]:
    """Yield the records of a batch, topic by topic; the order within each topic is kept.

    Rows without a topic must have been refused before.
    """
    import pyarrow.compute as pc

    if topic is not None:
        yield to_topic(batch, topic)
        return
    topics = batch.column(TOPIC)
    for found in pc.unique(topics).to_pylist():
        yield to_topic(batch.filter(pc.equal(topics, found)), found)


def sizes(batch: pa.RecordBatch) -> Any:
    """Return an upper bound of each record's size, as librdkafka counts it."""
    import pyarrow.compute as pc

    total = pc.fill_null(pc.binary_length(batch.column(VALUE)), 0)
    if KEY in batch.schema.names:
        total = pc.add(total, pc.fill_null(pc.binary_length(batch.column(KEY)), 0))
    return pc.add(total, _OVERHEAD_BYTES)


def largest(batch: pa.RecordBatch) -> int:
    """Return an upper bound of all sizes, in a fraction of the time."""
    names = [name for name in (VALUE, KEY) if name in batch.schema.names]
    return _OVERHEAD_BYTES + sum(int(lengths(batch.column(n)).max(initial=0)) for n in names)


def lengths(array: pa.Array) -> Any:
    """Return how long each text is, in bytes; of a null, anything."""
    return np.diff(ends(array))


def ends(array: pa.Array) -> Any:
    """Return where in the buffer each text begins, and where the last one ends."""
    import pyarrow as pa

    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    found = np.frombuffer(array.buffers()[1], np.dtype("i8" if wide else "i4"))
    return found[array.offset : array.offset + len(array) + 1]


Headers = list[tuple[str, bytes | None]]


def header_lists(array: pa.Array) -> list[Headers | str]:
    """Return the headers of each record, or why no record can have them.

    A key is text to Kafka, and Spark's strings may hold any bytes.
    """
    return [_headers(row or ()) for row in undecoded(array).to_pylist()]


def _headers(row: Sequence[dict[str, bytes | None]]) -> Headers | str:
    found: Headers = []
    for header in row:
        key, value = header.values()
        if key is None:
            return "a header has no key"
        if b"\0" in key:
            return "a header's key has a NUL in it, where Kafka's client would cut it off"
        try:
            found.append((key.decode(), value))
        except UnicodeDecodeError:
            return "a header's key is not UTF-8"
    return found


def undecoded(array: pa.Array) -> pa.Array:
    """Return an array whose texts are bytes, also in lists of headers: they may not be UTF-8."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        header = [pa.field(field.name, pa.binary()) for field in kind.value_type]
        wide = pa.types.is_large_list(kind)
        return array.cast((pa.large_list if wide else pa.list_)(pa.struct(header)))
    return array


def odd_topics(topics: pa.Array) -> Any:
    """Where a topic's name is no text that could name one; None for nowhere."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = undecoded(topics)
    odd = [name for name in pc.unique(texts).to_pylist() if name and not _is_plain(name)]
    return pc.is_in(texts, pa.array(odd, texts.type)) if odd else None


def _is_plain(name: bytes) -> bool:
    return name.isascii() and b"\0" not in name


def to_topic(batch: pa.RecordBatch, topic: str) -> Records:
    """Return the records of rows that all go to one topic."""

    def column(name: str) -> Any:
        return batch.column(name) if name in batch.schema.names else None

    return Records(
        topic, batch.column(VALUE), column(KEY), column(PARTITION), column(HEADERS), batch
    )
