"""Arrow columns as librdkafka's messages: pointers and lengths, filled by NumPy."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

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
