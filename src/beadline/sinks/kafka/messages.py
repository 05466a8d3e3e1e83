"""Arrow columns as librdkafka's messages: pointers and lengths, filled by NumPy."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from beadline.sinks.kafka import rows
from beadline.sinks.kafka.native import ANY_PARTITION

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
_NOTHING = ctypes.create_string_buffer(8)  # an empty value must still point somewhere


class Messages:
    """Room for the messages of one batch after the other: a fresh one each time has its price."""

    def __init__(self) -> None:
        self._room = np.zeros(0, MESSAGE)

    def of(self, values: pa.Array, keys: pa.Array | None, partitions: pa.Array | None) -> Any:
        """Return the messages of a batch: pointers into Arrow's buffers, which must stay alive.

        Good until the next one is asked for.
        """
        if len(values) > len(self._room):
            self._room = np.zeros(len(values), MESSAGE)
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
    """Return addresses and lengths; a null is no address at all."""
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
