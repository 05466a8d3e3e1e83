"""Values that files cannot keep, found as the rows pass to Spark's writer, before the decision.

No option saves text that is not UTF-8 in a text format, empty text in a folder's name, or, in orc,
a time in the last second before 1970, which orc's own library writes a second later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beadline.sinks.files.text import TEXT_FORMATS, folded

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
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
    if folder or format_ in TEXT_FORMATS:
        invalid = _deep(column, field.dataType, _not_utf8)
        if invalid is not None:
            where = "a folder's name" if folder else format_
            yield invalid, f"holds bytes that are not UTF-8, which {where} cannot keep"
    elif format_ == "orc":
        moment = _deep(column, field.dataType, _last_second)
        if moment is not None:
            yield moment, "holds a time in the last second before 1970, which orc writes wrongly"
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
