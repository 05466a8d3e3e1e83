"""Arrow columns as text that MySQL reads, made whole columns at a time.

Two forms: the lines of ``LOAD DATA`` and the rows of ``INSERT``. Bytes go as hex digits in both, so
that the text is plain UTF-8 whatever is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sinks.mysql.columns import MySqlColumn, family_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Form:
    """How rows are put together; ``escapes`` in their order, the escape itself first."""

    null: str
    separator: str
    begin: str
    end: str
    quote: str
    hex_begin: str
    hex_end: str
    escapes: tuple[tuple[str, str], ...]


LINES = Form(
    null="\\N",
    separator="\t",
    begin="",
    end="\n",
    quote="",
    hex_begin="",
    hex_end="",
    escapes=(("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\0", "\\0")),
)
TUPLES = Form(
    null="NULL",
    separator=",",
    begin="(",
    end="),",
    quote="'",
    hex_begin="X'",
    hex_end="'",
    escapes=(("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0"), ("\x1a", "\\Z")),
)


def rows_text(
    batch: pa.RecordBatch, columns: Sequence[MySqlColumn], form: Form, first_row: int | None
) -> Any:
    """Every row as text, begin and end included; ``first_row`` numbers them in a first column."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = [
        _text(array, column, form) for array, column in zip(batch.columns, columns, strict=True)
    ]
    if first_row is not None:
        numbers = pa.array(np.arange(first_row, first_row + batch.num_rows, dtype=np.int64))
        fields.insert(0, numbers.cast(pa.large_string()))
    joined = pc.binary_join_element_wise(*fields, _scalar(form.separator))
    return pc.binary_join_element_wise(_scalar(form.begin), joined, _scalar(form.end), _scalar(""))


def bytes_of(rows: Any) -> tuple[memoryview, Any]:
    """The text of all rows as one piece of memory, and where each row begins and ends in it."""
    import numpy as np

    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])], ends - ends[0]


def _scalar(text: str) -> Any:
    import pyarrow as pa

    return pa.scalar(text, pa.large_string())


def _text(array: Any, column: MySqlColumn, form: Form) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    family = family_of(array.type)
    if family == "text":
        text = _quoted(_escaped(array.cast(pa.large_string()), form), form.quote, form.quote)
    elif family == "binary":
        text = _quoted(_hex(array), form.hex_begin, form.hex_end)
    elif family in ("date", "timestamp"):
        text = _quoted(_time(array), form.quote, form.quote)
    elif family == "decimal":
        # Arrow writes a small one as 1E-7, which without quotes would be read as a float.
        plain = array.cast(pa.string()).cast(pa.large_string())
        text = _quoted(plain, form.quote, form.quote)
    elif family == "null":
        text = pa.nulls(len(array), pa.large_string())
    else:
        if family == "boolean":
            array = array.cast(pa.int8())
        elif family == "float":
            # The shortest text of a narrow float is another number, the largest's is out of range.
            array = array.cast(pa.float64())
        text = array.cast(pa.string()).cast(pa.large_string())
    return pc.fill_null(text, form.null)


def _quoted(text: Any, begin: str, end: str) -> Any:
    import pyarrow.compute as pc

    if not begin:
        return text
    return pc.binary_join_element_wise(_scalar(begin), text, _scalar(end), _scalar(""))


def _escaped(text: Any, form: Form) -> Any:
    """Replace only what is there: most columns have nothing to replace."""
    import pyarrow.compute as pc

    data = text.buffers()[2]
    if data is None:
        return text
    held = data.to_pybytes()
    for plain, escaped in form.escapes:
        if plain.encode() in held:
            text = pc.replace_substring(text, pattern=plain, replacement=escaped)
    return text


def _time(array: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_date(array.type):
        array = array.cast(pa.date32())
    else:
        # A zone is only how it is shown: inside it is UTC, which is what the session speaks.
        array = array.cast(pa.timestamp(array.type.unit)).cast(pa.timestamp("us"))
    return array.cast(pa.string()).cast(pa.large_string())


def _hex(array: Any) -> Any:
    """Twice as many digits as bytes, so every value is where it was, at twice the distance."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = array.cast(pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array
    whole = whole.cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    if offsets is None:
        return pa.nulls(len(array), pa.large_string())
    ends = np.frombuffer(offsets, dtype=np.int64)[whole.offset : whole.offset + len(whole) + 1]
    held = b"" if data is None else memoryview(data)[int(ends[0]) : int(ends[-1])].hex().encode()
    moved = pa.py_buffer(((ends - ends[0]) * 2).tobytes())
    digits = pa.LargeStringArray.from_buffers(len(whole), moved, pa.py_buffer(held))
    return pc.if_else(pc.is_valid(whole), digits, None) if whole.null_count else digits
