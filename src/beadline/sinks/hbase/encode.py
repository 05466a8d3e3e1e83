"""How Arrow columns become the bytes of HBase's keys and cells, made column by column.

HBase knows bytes only, so the form of a value is a choice. ``text``: what a person would type, in
UTF-8 (``shared/column_text``). ``bytes``: what HBase's own ``Bytes.toBytes`` makes, which Java
programs and the HBase shell's ``toLong`` and the like read. Strings and binaries are the same in
both.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

from beadline.sinks.shared.column_text import is_bytes, text

Encoding = Literal["text", "bytes"]
_EPOCH_DAYS_BYTES = ">i4"


def encode(column: Any, encoding: Encoding) -> Any:
    """Return the column as an Arrow array of binary values; null stays null."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([encode(chunk, encoding) for chunk in column.chunks], pa.binary())
    if pa.types.is_null(column.type) or is_bytes(column.type):
        return column.cast(pa.binary())
    return text(column).cast(pa.binary()) if encoding == "text" else _bytes(column)


def _bytes(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_decimal(kind):
        return pa.array([_big_decimal(value) for value in column.to_pylist()], pa.binary())
    if pa.types.is_boolean(kind):
        return _wide(column.cast(pa.int8()), ">i1", scale=-1)
    if pa.types.is_date(kind):
        return _wide(column.cast(pa.date32()).cast(pa.int32()), _EPOCH_DAYS_BYTES)
    if pa.types.is_timestamp(kind):
        return _wide(column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()), ">i8")
    letter = "f" if pa.types.is_floating(kind) else "u" if "uint" in str(kind) else "i"
    return _wide(column, f">{letter}{kind.bit_width // 8}")


def _wide(column: Any, form: str, scale: int = 1) -> Any:
    """Return numbers of one width as binary values of that width, in one go."""
    import pyarrow as pa

    numbers = column.fill_null(0).to_numpy(zero_copy_only=False) * scale
    data = pa.py_buffer(numbers.astype(form).tobytes())
    width = int(form[-1])
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, data])
    values = fixed.cast(pa.binary())
    if column.null_count:
        import pyarrow.compute as pc

        values = pc.if_else(column.is_valid(), values, pa.scalar(None, pa.binary()))
    return values


def _big_decimal(value: Any) -> bytes | None:
    """Bytes.toBytes(BigDecimal): the scale as an int, then the digits as Java's BigInteger."""
    if value is None:
        return None
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    # As short as two's complement allows; -128 fits into one byte, 128 needs two.
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return struct.pack(">i", -exponent) + number.to_bytes(length, "big", signed=True)
