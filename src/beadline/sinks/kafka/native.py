"""Handing librdkafka a whole Arrow batch at once.

confluent-kafka wants a Python object per key and value. librdkafka itself takes an array of
pointers and lengths (``rd_kafka_produce_batch``), which NumPy fills from Arrow's own buffers
without touching a row. Everything else (settings, transactions, flush) stays with confluent-kafka.
The pointer to librdkafka's handle is the first field of its Producer object and has been since the
first release; ``available`` tells whether this version was tried, and the caller has a slower way
if not.
"""

from __future__ import annotations

import ctypes
import glob
import os
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# rd_kafka_message_t: public in rdkafka.h, and unchanged since version 0.8.
MESSAGE = np.dtype(
    {
        "names": ["err", "topic", "partition", "value", "length", "key", "key_length"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48],
        "itemsize": 72,
    }
)
TESTED = ((2, 6), (3, 0))  # releases of confluent-kafka: from, below
COPY = 0x2
PARTITION = 0x8
QUEUE_FULL = -184
ANY_PARTITION = -1
_NOTHING = ctypes.create_string_buffer(8)  # an empty value must still point somewhere
_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_DELIVERED = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _POINTER)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_conf_set_dr_msg_cb": (None, [_POINTER, _DELIVERED]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_purge": (_INT, [_POINTER, _INT]),
    "rd_kafka_poll": (_INT, [_POINTER, _INT]),
    "rd_kafka_flush": (_INT, [_POINTER, _INT]),
    "rd_kafka_outq_len": (_INT, [_POINTER]),
    "rd_kafka_err2str": (_TEXT, [_INT]),
    "rd_kafka_topic_new": (_POINTER, [_POINTER, _TEXT, _POINTER]),
    "rd_kafka_topic_destroy": (None, [_POINTER]),
    "rd_kafka_produce_batch": (_INT, [_POINTER, ctypes.c_int32, _INT, _POINTER, _INT]),
}


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return librdkafka as it came with confluent-kafka, or None."""
    import confluent_kafka

    release = tuple(int(field) for field in version("confluent-kafka").split(".")[:2])
    if not TESTED[0] <= release < TESTED[1]:
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


class BatchProducer:
    """The native side of one confluent-kafka Producer."""

    def __init__(self, producer: Any) -> None:
        self._handle = _POINTER.from_address(id(producer) + object.__basicsize__).value
        self._topics: dict[str, int] = {}

    def send(self, topic: str, messages: np.ndarray[Any, Any], partitions: bool) -> int:
        """Queue messages in order, as far as there is room; ``err`` of each says what became."""
        handle = self._topics.get(topic)
        if handle is None:
            handle = _library().rd_kafka_topic_new(self._handle, topic.encode(), None)
            if not handle:
                raise RuntimeError(f"librdkafka refuses topic {topic!r}")
            self._topics[topic] = handle
        flags = COPY | (PARTITION if partitions else 0)
        address = messages.ctypes.data
        good: int = _library().rd_kafka_produce_batch(
            handle, ANY_PARTITION, flags, address, len(messages)
        )
        return good

    def close(self) -> None:
        """Let go of the topics: librdkafka waits for that before it ends."""
        while self._topics:
            _library().rd_kafka_topic_destroy(self._topics.popitem()[1])


class LonelyProducer(BatchProducer):
    """A producer of librdkafka's without confluent-kafka round it.

    For records outside transactions: confluent-kafka tells only of records that it queued itself,
    and here nothing else would notice that one was not taken. Told of failures only, so that a
    million records that were taken cost nothing.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._errors: list[str] = []
        self._topics = {}
        library = _library()
        conf = library.rd_kafka_conf_new()
        said = ctypes.create_string_buffer(512)
        for name, value in {**settings, "delivery.report.only.error": True}.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if library.rd_kafka_conf_set(conf, name.encode(), text.encode(), said, len(said)):
                raise ValueError(said.value.decode(errors="replace"))
        self._callback = _DELIVERED(self._failed)  # kept: librdkafka does not own it
        library.rd_kafka_conf_set_dr_msg_cb(conf, self._callback)
        self._handle = library.rd_kafka_new(0, conf, said, len(said))
        if not self._handle:
            raise ValueError(said.value.decode(errors="replace"))

    def _failed(self, _: Any, message: int, __: Any) -> None:
        code = ctypes.c_int.from_address(message).value
        if code:
            self._errors.append(_library().rd_kafka_err2str(code).decode())

    def errors(self) -> list[str]:
        """Return, once, what went wrong with records since the last time."""
        errors, self._errors = self._errors, []
        return errors

    def poll(self, timeout_s: float) -> None:
        """Let librdkafka say what went wrong."""
        _library().rd_kafka_poll(self._handle, int(timeout_s * 1000))

    def flush(self, timeout_s: float) -> int:
        """Wait for answers; return how many records have none yet."""
        _library().rd_kafka_flush(self._handle, int(timeout_s * 1000))
        left: int = _library().rd_kafka_outq_len(self._handle)
        return left

    def close(self) -> None:
        """Throw away what is queued, and end."""
        super().close()
        if self._handle:
            handle, self._handle = self._handle, None
            _library().rd_kafka_purge(handle, 3)
            _library().rd_kafka_destroy(handle)


def messages(values: pa.Array, keys: pa.Array | None, partitions: pa.Array | None) -> Any:
    """Return the messages of a batch: pointers into Arrow's buffers, which must stay alive."""
    found = np.zeros(len(values), MESSAGE)
    found["value"], found["length"] = _pointers(values)
    if keys is not None:
        found["key"], found["key_length"] = _pointers(keys)
    if partitions is not None:
        found["partition"] = partitions.fill_null(ANY_PARTITION).to_numpy(zero_copy_only=False)
    return found


def _pointers(array: pa.Array) -> tuple[Any, Any]:
    """Return addresses and lengths; a null is no address at all."""
    import pyarrow as pa

    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    kind = np.dtype("i8" if wide else "i4")
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, kind)[array.offset : array.offset + len(array) + 1]
    base = data.address if data is not None and data.size else ctypes.addressof(_NOTHING)
    addresses = offsets[:-1].astype("u8") + np.uint64(base)
    lengths = np.diff(offsets).astype("u8")
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        addresses = np.where(valid, addresses, np.uint64(0))
        lengths = np.where(valid, lengths, np.uint64(0))
    return addresses, lengths
