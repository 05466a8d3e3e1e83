"""Handing librdkafka a whole Arrow batch at once.

confluent-kafka takes a Python object per key and value. librdkafka itself takes an array of
pointers and lengths (``rd_kafka_produce_batch``), which NumPy fills from Arrow's own buffers
without touching a row. So the producers of Beadline's workers are librdkafka's own, out of the
library that comes with confluent-kafka, through the few functions that they need; all are public
and documented in rdkafka.h. ``available`` tells whether this version was tried; if not, the caller
takes confluent-kafka's producer, which is slower.
"""

from __future__ import annotations

import ctypes
import glob
import math
import os
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from beadline.shared.options import option_text
from beadline.sinks.kafka import rows

if TYPE_CHECKING:
    import pyarrow as pa

_TESTED = ((2, 6), (3, 0))  # releases of confluent-kafka: from, below
COPY = 0x2
_PARTITION_FLAG = 0x8
QUEUE_FULL = -184
ANY_PARTITION = -1
_STEP_S = 0.1
_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADER = 2, 3, 4, 5, 7, 9  # rd_kafka_vtype_t
_REPORTS = 0x1  # RD_KAFKA_EVENT_DR
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_conf_set_events": (None, [_POINTER, _INT]),
    "rd_kafka_queue_get_main": (_POINTER, [_POINTER]),
    "rd_kafka_queue_destroy": (None, [_POINTER]),
    "rd_kafka_queue_poll": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_event_type": (_INT, [_POINTER]),
    "rd_kafka_event_message_next": (_POINTER, [_POINTER]),
    "rd_kafka_event_destroy": (None, [_POINTER]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_purge": (_INT, [_POINTER, _INT]),
    "rd_kafka_flush": (_INT, [_POINTER, _INT]),
    "rd_kafka_outq_len": (_INT, [_POINTER]),
    "rd_kafka_err2str": (_TEXT, [_INT]),
    "rd_kafka_topic_new": (_POINTER, [_POINTER, _TEXT, _POINTER]),
    "rd_kafka_topic_destroy": (None, [_POINTER]),
    "rd_kafka_metadata": (_INT, [_POINTER, _INT, _POINTER, _POINTER, _INT]),
    "rd_kafka_metadata_destroy": (None, [_POINTER]),
    "rd_kafka_produceva": (_POINTER, [_POINTER, _POINTER, ctypes.c_size_t]),
    "rd_kafka_init_transactions": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_begin_transaction": (_POINTER, [_POINTER]),
    "rd_kafka_commit_transaction": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_error_code": (_INT, [_POINTER]),
    "rd_kafka_error_string": (_TEXT, [_POINTER]),
    "rd_kafka_error_is_retriable": (_INT, [_POINTER]),
    "rd_kafka_error_is_fatal": (_INT, [_POINTER]),
    "rd_kafka_error_destroy": (None, [_POINTER]),
    "rd_kafka_produce_batch": (_INT, [_POINTER, ctypes.c_int32, _INT, _POINTER, _INT]),
}


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return librdkafka as it came with confluent-kafka, or None."""
    import confluent_kafka

    release = tuple(int(field) for field in version("confluent-kafka").split(".")[:2])
    if not _TESTED[0] <= release < _TESTED[1]:
        return None
    folder = os.path.dirname(confluent_kafka.__file__)
    names = glob.glob(os.path.join(f"{folder}.libs", "librdkafka*")) or glob.glob(
        os.path.join(folder, ".dylibs", "librdkafka*")
    )
    if len(names) != 1:
        return None
    library = ctypes.CDLL(names[0])
    for name, (answer, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = answer, arguments
    return library


def available() -> bool:
    """Whether batches can be handed over natively with the confluent-kafka that is installed."""
    return _library() is not None


class NativeProducer:
    """A librdkafka producer, without confluent-kafka around it, under the same method names.

    confluent-kafka tells only of records that it queued itself, and librdkafka does not fail a
    transaction over every record that was not taken, so this class listens for failures. It gets no
    other reports, so that a million records that were taken cost nothing; and it polls events, as
    with a callback librdkafka's flush wakes up only every 10 ms.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._errors: list[str] = []
        self._topics: dict[str, int] = {}
        self._known: set[str] = set()
        library = _library()
        conf = library.rd_kafka_conf_new()
        said = ctypes.create_string_buffer(512)
        for name, value in {**settings, "delivery.report.only.error": True}.items():
            text = option_text(value).encode()
            if library.rd_kafka_conf_set(conf, name.encode(), text, said, len(said)):
                raise ValueError(f"librdkafka refuses the option {name!r}")
        library.rd_kafka_conf_set_events(conf, _REPORTS)
        self._handle = library.rd_kafka_new(0, conf, said, len(said))
        if not self._handle:
            raise ValueError(said.value.decode(errors="replace"))
        self._queue = library.rd_kafka_queue_get_main(self._handle)

    def _listen(self, timeout_s: float = 0) -> None:
        """Note every record that failed, which also frees it."""
        library, wait_ms = _library(), int(timeout_s * 1000)
        while event := library.rd_kafka_queue_poll(self._queue, wait_ms):
            if library.rd_kafka_event_type(event) == _REPORTS:
                while message := library.rd_kafka_event_message_next(event):
                    code = ctypes.c_int.from_address(message).value
                    if code:
                        self._errors.append(library.rd_kafka_err2str(code).decode())
            library.rd_kafka_event_destroy(event)
            wait_ms = 0

    def errors(self) -> list[str]:
        """Return, once, what went wrong with records since the last time."""
        self._listen()
        errors, self._errors = self._errors, []
        return errors

    def send(self, topic: str, messages: np.ndarray[Any, Any], partitions: bool) -> int:
        """Queue messages in order, as far as there is room; ``err`` of each says what became."""
        flags = COPY | (_PARTITION_FLAG if partitions else 0)
        if partitions:
            self._know(topic)
        good: int = _library().rd_kafka_produce_batch(
            self._topic(topic), ANY_PARTITION, flags, messages.ctypes.data, len(messages)
        )
        return good

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Queue one record; BufferError if there is no room."""
        fields = [_Field.of(_TOPIC, self._topic(topic)), _Field.of(_FLAGS, COPY)]
        fields += [_Field.of(_PARTITION, partition), _Field.data(_VALUE, value)]
        fields += [_Field.data(_KEY, key)]
        fields += [_Field.header(name, content) for name, content in headers]
        array = (_Field * len(fields))(*fields)
        try:
            self._done(_library().rd_kafka_produceva(self._handle, array, len(fields)))
        except _kafka_exception() as error:
            if error.args[0].code() == QUEUE_FULL:
                raise BufferError("the queue is full") from None
            raise

    def poll(self, timeout_s: float) -> None:
        """Let librdkafka say what went wrong."""
        self._listen(timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Wait for answers; return how many records have none yet.

        A record that failed counts until its event is polled, so flush in short steps.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, min(_STEP_S, deadline_s - time.monotonic()))
            _library().rd_kafka_flush(self._handle, math.ceil(left_s * 1000))
            self._listen()
            left: int = _library().rd_kafka_outq_len(self._handle)
            if not left or time.monotonic() >= deadline_s:
                return left

    def init_transactions(self, timeout_s: float) -> None:
        """Get a producer id from the broker; fences the last owner of the transactional id."""
        self._done(_library().rd_kafka_init_transactions(self._handle, int(timeout_s * 1000)))

    def begin_transaction(self) -> None:
        """Begin one."""
        self._done(_library().rd_kafka_begin_transaction(self._handle))

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit it; here that confirms what the driver has committed."""
        self._done(_library().rd_kafka_commit_transaction(self._handle, int(timeout_s * 1000)))

    def close(self) -> None:
        """Drop what is queued, and close; librdkafka waits for its topics to be released."""
        handle, self._handle = self._handle, None
        while self._topics:
            _library().rd_kafka_topic_destroy(self._topics.popitem()[1])
        if handle:
            _library().rd_kafka_purge(handle, 3)
            _library().rd_kafka_queue_destroy(self._queue)
            _library().rd_kafka_destroy(handle)

    def _topic(self, name: str) -> int:
        handle = self._topics.get(name)
        if handle is None:
            handle = _library().rd_kafka_topic_new(self._handle, name.encode(), None)
            if not handle:
                raise RuntimeError(f"librdkafka refuses topic {name!r}")
            self._topics[name] = handle
        return handle

    def _know(self, topic: str) -> None:
        """Have librdkafka fetch a topic's partitions first.

        Of a batch with partitions of its own, it would otherwise add one to the transaction that
        does not exist: the one in which records wait while nothing is known.
        """
        if topic in self._known:
            return
        library, answer = _library(), _POINTER()
        handle = self._topic(topic)
        code = library.rd_kafka_metadata(self._handle, 0, handle, ctypes.byref(answer), 60_000)
        if code:
            from confluent_kafka import KafkaError

            raise _kafka_exception()(KafkaError(code))
        library.rd_kafka_metadata_destroy(answer)
        self._known.add(topic)

    def _done(self, error: int | None) -> None:
        """Raise what librdkafka answers, as confluent-kafka would."""
        if not error:
            return
        from confluent_kafka import KafkaError

        library = _library()
        code = library.rd_kafka_error_code(error)
        text = library.rd_kafka_error_string(error).decode(errors="replace")
        retriable = bool(library.rd_kafka_error_is_retriable(error))
        fatal = bool(library.rd_kafka_error_is_fatal(error))
        library.rd_kafka_error_destroy(error)
        raise _kafka_exception()(KafkaError(code, text, fatal=fatal, retriable=retriable))


# rd_kafka_message_t: public in rdkafka.h, and unchanged since version 0.8.
_MESSAGE = np.dtype(
    {
        "names": ["err", "topic", "partition", "value", "length", "key", "key_length"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48],
        "itemsize": 72,
    }
)
_NOTHING = ctypes.create_string_buffer(8)  # an empty value must still point somewhere


class Messages:
    """Room for the messages of one batch after the other: allocating one each time is expensive."""

    def __init__(self) -> None:
        self._room = np.zeros(0, _MESSAGE)

    def of(self, values: pa.Array, keys: pa.Array | None, partitions: pa.Array | None) -> Any:
        """Return the messages of a batch: pointers into Arrow's buffers, which must stay alive.

        Valid until the next call.
        """
        if len(values) > len(self._room):
            self._room = np.zeros(len(values), _MESSAGE)
        return _fill(self._room[: len(values)], values, keys, partitions)


def _fill(found: Any, values: pa.Array, keys: pa.Array | None, partitions: pa.Array | None) -> Any:
    found["err"] = 0
    found["value"], found["length"] = _pointers(values)
    if keys is None:
        found["key"] = found["key_length"] = 0
    else:
        found["key"], found["key_length"] = _pointers(keys)
    if partitions is not None:
        found["partition"] = partitions.fill_null(ANY_PARTITION).to_numpy(zero_copy_only=False)
    return found


def _pointers(array: pa.Array) -> tuple[Any, Any]:
    """Return addresses and lengths; the address of a null is 0."""
    data = array.buffers()[2]
    offsets = rows.ends(array)
    base = data.address if data is not None and data.size else ctypes.addressof(_NOTHING)
    addresses = offsets[:-1].astype("u8") + np.uint64(base)
    lengths = np.diff(offsets).astype("u8")
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        addresses = np.where(valid, addresses, np.uint64(0))
        lengths = np.where(valid, lengths, np.uint64(0))
    return addresses, lengths


class _Field(ctypes.Structure):
    """rd_kafka_vu_t: one argument of ``rd_kafka_produceva``; public in rdkafka.h.

    What it points to must live until the call: each keeps it.
    """

    _fields_ = (
        ("kind", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
        ("third", ctypes.c_int64),
        ("rest", ctypes.c_char * 40),
    )

    @classmethod
    def of(cls, kind: int, number: int) -> _Field:
        return cls(kind, number & 0xFFFFFFFFFFFFFFFF)

    @classmethod
    def data(cls, kind: int, content: bytes | str | None) -> _Field:
        if content is None:
            return cls(kind, 0, 0)
        data = content.encode() if isinstance(content, str) else content
        field = cls(kind, ctypes.cast(ctypes.c_char_p(data), _POINTER).value, len(data))
        field.kept = data
        return field

    @classmethod
    def header(cls, name: str, content: bytes | None) -> _Field:
        kept = (name.encode(), content)
        places = [ctypes.cast(ctypes.c_char_p(one), _POINTER).value or 0 for one in kept]
        field = cls(_HEADER, places[0], places[1], 0 if content is None else len(content))
        field.kept = kept
        return field


def _kafka_exception() -> Any:
    from confluent_kafka import KafkaException

    return KafkaException
