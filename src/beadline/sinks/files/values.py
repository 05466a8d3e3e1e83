"""Values that files cannot keep, found as the rows pass to Spark's writer, before the decision.

No option saves text that is not UTF-8 in a text format, text that no folder can be named after, or,
in orc, times that its own library moves: those of the last second before 1970, and of the ten days
that its calendar does not have, 5 to 14 October 1582.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beadline.sink import BadSink
from beadline.sinks.files.text import TEXT_FORMATS, folded

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# The bytes of a name on local disks, and on HDFS as it comes.
NAME_BYTES_MAX = 255
# What Spark writes as %XX in the names of folders.
_ESCAPED = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
# 5 to 14 October 1582: days that ORC's hybrid calendar does not have.
_GAP_DAYS = (-141_437, -141_428)
_GAP = (
    "a day from 5 to 14 October 1582, or a time within a day of them, which orc moves to another "
    "day, as its calendar goes from the 4th to the 15th"
)
_DAY_MICROS = 86_400_000_000
Leaf = Callable[["Column", "DataType"], "Column | None"]


def lossy_values(
    schema: StructType, format_: str, options: Mapping[str, Any], partition_by: Sequence[str]
) -> Column | None:
    """Return, for each row, why a value of it would not come back; null where all would.

    None if rows of this schema cannot hold such a value.
    """
    from pyspark.sql import functions as F

    folders = {name.lower() for name in partition_by}
    null = folded(options).get("nullvalue", "") if format_ == "csv" else ""
    found: Column | None = None
    for field in schema.fields:
        column = F.col(quoted(field.name))
        for bad, why in _suspects(column, field, field.name.lower() in folders, format_, null):
            reason = F.lit(f"column {field.name!r} {why}")
            found = F.when(bad, reason) if found is None else found.when(bad, reason)
    return found


def _suspects(
    column: Column, field: Any, folder: bool, format_: str, null: str
) -> Iterator[tuple[Column, str]]:
    from pyspark.sql.types import StringType

    text = isinstance(field.dataType, StringType)
    if folder and text:
        why = "holds empty text, which names the same folder as null"
        yield column == "", f"{why}; write null, or another text"
        yield column == _NULL_FOLDER, f"holds {_NULL_FOLDER!r}, which names the folder of null"
        yield column.contains("\0"), "holds a NUL, which no folder's name can; replace() it"
        why = f"holds text too long to name a folder, of which a name has {NAME_BYTES_MAX} bytes"
        yield _too_long(column, field.name), f"{why}; shorten it, or use sha2()"
    if folder or format_ in TEXT_FORMATS:
        invalid = _deep(column, field.dataType, _not_utf8)
        if invalid is not None:
            where = "a folder's name" if folder else format_
            yield invalid, f"holds bytes that are not UTF-8, which {where} cannot keep"
    elif format_ == "orc":
        if (moment := _deep(column, field.dataType, _last_second)) is not None:
            yield moment, "holds a time in the last second before 1970, which orc writes wrongly"
        if (gap := _deep(column, field.dataType, _in_gap)) is not None:
            yield gap, f"holds {_GAP}"
    if null and text and not folder:
        yield column == null, f"holds {null!r}, which option nullValue says is null"


def _not_utf8(column: Column, kind: DataType) -> Column | None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    return ~F.is_valid_utf8(column) if isinstance(kind, StringType) else None


def _last_second(column: Column, kind: DataType) -> Column | None:
    """Orc's own library writes it a second later; times without a zone are written as numbers."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import TimestampType

    return F.unix_micros(column).between(-999_999, -1) if isinstance(kind, TimestampType) else None


def _in_gap(column: Column, kind: DataType) -> Column | None:
    """Whether orc's own library moves it; times by the JVM's zone, whichever executor writes."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, TimestampType

    first, last = _GAP_DAYS
    if isinstance(kind, DateType):
        return F.unix_date(column).between(first, last)
    if isinstance(kind, TimestampType):
        start, end = (first - 1) * _DAY_MICROS, (last + 2) * _DAY_MICROS
        return F.unix_micros(column).between(start, end - 1)
    return None


def _too_long(column: Column, name: str) -> Column:
    """Whether no folder can be called ``name=value``."""
    from pyspark.sql import functions as F

    left = NAME_BYTES_MAX - folder_bytes(name, "")
    escaped = F.regexp_replace(column, _ESCAPED, "%XX")
    return (F.octet_length(column) > left // 3) & (F.octet_length(escaped) > left)


def folder_bytes(name: str, value: str = _NULL_FOLDER) -> int:
    """Return the length of a partition's folder name; that of null if no value is given."""
    return len(f"{re.sub(_ESCAPED, '%XX', name)}={value}".encode())


def with_folders(frame: DataFrame, schema: StructType, partition_by: Sequence[str]) -> DataFrame:
    """Put null where no folder could be made, so that the write ends and the row can be named.

    What is refused is told after the write, with the column and the number of rows; a folder that
    cannot be made would end the write before, with neither.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    folders = {name.lower() for name in partition_by}
    kept = {}
    for field in schema.fields:
        if field.name.lower() in folders and isinstance(field.dataType, StringType):
            column = F.col(quoted(field.name))
            bad = column.contains("\0") | _too_long(column, field.name)
            kept[field.name] = F.when(~bad, column)
    return frame.withColumns(kept) if kept else frame


def check_collations(schema: StructType, where: str) -> None:
    """Raise for a collated string, of which orc writes a schema that Spark cannot read.

    Arrow's schema, of which ``check`` is told, does not know collations.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    def collated(column: Column, kind: DataType) -> Column | None:
        plain = kind.simpleString() == "string"
        return column if isinstance(kind, StringType) and not plain else None

    for field in schema.fields:
        if _deep(F.lit(None), field.dataType, collated) is not None:
            raise BadSink(
                f"{where}: column {field.name!r} is, or holds, a collated string, which Spark "
                "writes to orc but cannot read back: use collate(..., 'UTF8_BINARY'), or parquet. "
                "Nothing of this epoch was written"
            )


def _deep(column: Column, kind: DataType, leaf: Leaf) -> Column | None:
    """Whether ``leaf`` is true of anything in a value; None if there is nothing to ask it of."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _any(column, kind.elementType, leaf)
    if isinstance(kind, MapType):
        keys, values = F.map_keys(column), F.map_values(column)
        inside = [_any(keys, kind.keyType, leaf), _any(values, kind.valueType, leaf)]
    elif isinstance(kind, StructType):
        inside = [_deep(column.getField(f.name), f.dataType, leaf) for f in kind.fields]
    else:
        return leaf(column, kind)
    found: Column | None = None
    for one in inside:
        if one is not None:
            found = one if found is None else found | one
    return found


def _any(column: Column, kind: DataType, leaf: Leaf) -> Column | None:
    from pyspark.sql import functions as F

    if _deep(column, kind, leaf) is None:
        return None
    return F.exists(column, lambda item: _certain(_deep(item, kind, leaf)))


def _certain(found: Column | None) -> Column:
    from pyspark.sql import functions as F

    assert found is not None
    return F.coalesce(found, F.lit(False))


def newlines(schema: StructType, partition_by: Sequence[str]) -> Column:
    """Return how many newlines the values of a row put into a csv file."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    folders = {name.lower() for name in partition_by}
    found = F.lit(0)
    for field in schema.fields:
        if isinstance(field.dataType, StringType) and field.name.lower() not in folders:
            column = F.col(quoted(field.name))
            without = F.octet_length(F.replace(column, F.lit("\n"), F.lit("")))
            found = found + F.coalesce(F.octet_length(column) - without, F.lit(0))
    return found


def quoted(name: str) -> str:
    """Return a column's name as Spark takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
