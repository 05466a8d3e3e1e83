"""A join with a slowly changing table, which a function loads and the Python workers cache.

Each Python worker loads the table when it first needs it, and again, before a task, when it is
older than ``refresh``: a task sees one version of the table, while two workers may have different
versions for that long. A row is joined with the table as it was *then*, so a replay is joined with
the table as it is at the time of the replay; the guarantee report warns of that.
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegralType, StructType

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.columns import check_binary, column_of
from beadline.event_time.durations import Duration, microseconds
from beadline.event_time.sides import Sides, Suffixes, one_of, sides
from beadline.guarantee.chance import ByChance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LoadTable = Callable[[], Any]  # a pyarrow Table, a pandas frame or a list of dictionaries
KeyValues = tuple[Any, ...]
REFRESH = "5 minutes"
TABLES_MAX = 8  # in one worker: tables of queries that have ended are not kept forever
_RIGHT = "beadline_table_"
_log = logging.getLogger("beadline")


def lookup_join(
    frame: DataFrame,
    table: LoadTable | DataFrame,
    on: Sequence[str] | str,
    *,
    how: Literal["inner", "left"] = "inner",
    refresh: Duration | None = None,
    on_error: Literal["fail", "keep"] = "fail",
    schema: str | StructType | None = None,
    suffixes: Suffixes | None = None,
) -> DataFrame:
    """Join each row with the rows of a table that have the same keys, as the table is then.

    ``table`` is a function without arguments that returns the whole table: a pyarrow Table, a
    pandas DataFrame or a list of dictionaries. It is called in the Python workers, and again after
    ``refresh`` (5 minutes unless given). It is also called once on the driver, to determine the
    columns, unless ``schema`` gives them (``"product string, price double"``). A row that matches
    several rows is emitted with each of them. Null matches nothing.

    If the function fails, so does the epoch, and none of it becomes visible. With
    ``on_error="keep"``, a worker that has loaded the table before continues with its old copy, logs
    a warning, and tries again in its next task.

    ``table`` may also be a DataFrame that is not streaming, which Spark reads in each epoch. Files
    are listed once, when the DataFrame is created; database tables are read as they are then.

    >>> named = lookup_join(orders, load_products, on="product", how="left", refresh="1 minute")
    """
    what = "lookup_join()"
    one_of(what, "how", how, ("inner", "left"))
    one_of(what, "on_error", on_error, ("fail", "keep"))
    if not callable(table):
        _check_frame(what, table, refresh, on_error, schema)
        return _static(what, frame, table, on, how, suffixes)
    refresh_us = microseconds("refresh", REFRESH if refresh is None else refresh)
    types = _like(_schema(what, table, schema), frame.schema)
    named = sides(what, frame.schema, types, on, suffixes)
    for name in named.keys:
        check_binary(f"{what}: on={name!r}", frame.schema[name].dataType)
    arrow = to_arrow_schema(types, timezone="UTC")
    assert arrow is not None
    name = getattr(table, "__qualname__", type(table).__qualname__)
    lookup = Lookup(uuid.uuid4().hex, name, arrow, refresh_us / 1e6, on_error == "keep", how)
    shown = StructType()
    for one in frame.schema:
        shown = shown.add(named.left.get(one.name, one.name), one.dataType, metadata=one.metadata)
    for old, new in named.right.items():
        shown = shown.add(new, types[old].dataType)
    load = ByChance(table, name)
    join = functools.partial(_join, load=load, lookup=lookup, named=named)
    join.__name__ = "lookup_join"  # type: ignore[attr-defined]  # what Spark and the analyzer show
    return frame.mapInArrow(join, shown)


def _check_frame(
    what: str,
    table: Any,
    refresh: Duration | None,
    on_error: str,
    schema: str | StructType | None,
) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(table, DataFrame):
        raise BadQuery(
            f"{what}: table= takes a function that returns the table, or a DataFrame, not "
            f"{type(table).__name__}. {NOTHING_WRITTEN}"
        )
    if table.isStreaming:
        raise BadQuery(
            f"{what}: table= is a streaming DataFrame; join two streams with temporal_join() or "
            f"interval_join(). {NOTHING_WRITTEN}"
        )
    if refresh is not None or on_error != "fail" or schema is not None:
        raise BadQuery(
            f"{what}: refresh=, on_error= and schema= are for a function; a DataFrame is read by "
            f"Spark in each epoch. {NOTHING_WRITTEN}"
        )


def _static(
    what: str,
    frame: DataFrame,
    table: DataFrame,
    on: Sequence[str] | str,
    how: str,
    suffixes: Suffixes | None,
) -> DataFrame:
    """Return Spark's own join of a stream with a table."""
    named = sides(what, frame.schema, table.schema, on, suffixes)
    other = table.select([column_of(name).alias(_RIGHT + name) for name in table.columns])
    same = functools.reduce(
        lambda one, more: one & more,
        (column_of(name) == column_of(_RIGHT + name) for name in named.keys),
        F.lit(True),
    )
    return frame.join(other, same, how).select(
        *(column_of(name).alias(named.left.get(name, name)) for name in frame.columns),
        *(column_of(_RIGHT + name).alias(new) for name, new in named.right.items()),
    )


def _schema(what: str, table: LoadTable, given: str | StructType | None) -> StructType:
    """Return the table's columns: as given, or as loaded now."""
    if given is not None:
        if isinstance(given, StructType):
            return given
        parsed = StructType.fromDDL(given)
        assert isinstance(parsed, StructType)
        return parsed
    try:
        found = as_table(table()).schema
        types = from_arrow_schema(found)
    except Exception as error:
        raise BadQuery(
            f"{what}: the table could not be loaded on the driver to determine its columns: "
            f"{type(error).__name__}: {error}. If only the workers can load it, give the columns: "
            f"schema='product string, price double'. {NOTHING_WRITTEN}"
        ) from error
    unknown = [one.name for one in found if pa.types.is_null(one.type)]
    if unknown or not len(found):
        columns = ", ".join(map(repr, unknown)) or "its columns"
        raise BadQuery(
            f"{what}: the table has no values that show the type of {columns}: give the types, "
            f"schema='product string, price double'. {NOTHING_WRITTEN}"
        )
    return types


def _like(types: StructType, frame: StructType) -> StructType:
    """Return a table's columns with the stream's integer types: Python's are all bigints."""
    found = StructType()
    for one in types:
        asked = frame[one.name].dataType if one.name in frame.names else one.dataType
        whole = isinstance(one.dataType, IntegralType) and isinstance(asked, IntegralType)
        found = found.add(one.name, asked if whole else one.dataType)
    return found


@dataclass(frozen=True)
class Lookup:
    """How a table is loaded and joined; ``id`` identifies a worker's copy of the table."""

    id: str
    name: str
    schema: pa.Schema
    refresh_s: float
    keeps: bool
    how: str


@dataclass
class Loaded:
    """A table in a worker, with the rows of each key."""

    table: pa.Table
    rows: dict[KeyValues, list[int]]
    loaded_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Record the time."""
        self.loaded_s = time.monotonic()

    def age_s(self) -> float:
        """Return how long ago it was loaded."""
        return time.monotonic() - self.loaded_s


_tables: dict[str, Loaded] = {}  # by the lookup's id; as long as the worker lives


def _join(
    batches: Iterator[pa.RecordBatch], *, load: LoadTable, lookup: Lookup, named: Sides
) -> Iterator[pa.RecordBatch]:
    """Join the rows of one task."""
    loaded: Loaded | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if loaded is None:  # before the first rows: a task without rows loads nothing
            loaded = current(load, lookup, named.keys)
        yield from matched(batch, loaded, lookup, named).to_batches()


def current(load: LoadTable, lookup: Lookup, keys: Sequence[str]) -> Loaded:
    """Return this worker's copy of the table, reloaded if it is too old."""
    held = _tables.get(lookup.id)
    if held is not None and held.age_s() < lookup.refresh_s:
        return held
    try:
        table = _typed(as_table(load()), lookup.schema, keys)
    except Exception as error:
        failed = f"table {lookup.name} could not be loaded: {type(error).__name__}: {error}"
        if held is not None and lookup.keeps:
            _log.warning(
                "lookup_join: %s; rows are joined with what was loaded %.0f s ago",
                failed,
                held.age_s(),
            )
            return held
        raise RuntimeError(
            f"lookup_join: {failed}. Nothing of the epoch is visible; the next start computes it "
            "again"
        ) from error
    _tables.pop(lookup.id, None)
    while len(_tables) >= TABLES_MAX:
        del _tables[next(iter(_tables))]
    _tables[lookup.id] = Loaded(table, _rows_by_key(table, keys))
    return _tables[lookup.id]


def as_table(loaded: Any) -> pa.Table:
    """Return the value of a user's function as an Arrow table."""
    if isinstance(loaded, pa.Table):
        return loaded
    if isinstance(loaded, pa.RecordBatch):
        return pa.Table.from_batches([loaded])
    if isinstance(loaded, pd.DataFrame):
        return pa.Table.from_pandas(loaded, preserve_index=False)
    if isinstance(loaded, list | tuple) and all(isinstance(row, dict) for row in loaded):
        return pa.Table.from_pylist(list(loaded))
    raise TypeError(
        "the function must return a pyarrow Table, a pandas DataFrame or a list of dictionaries, "
        f"not {type(loaded).__name__}"
    )


def _typed(table: pa.Table, schema: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """Return a table with the columns and types with which the query was defined."""
    if not table.num_rows:
        return schema.empty_table()
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ValueError(f"it no longer has column {', '.join(map(repr, missing))}")
    table = table.select(schema.names)
    for at, one in enumerate(schema):  # integer keys are only compared: their width does not matter
        if one.name in keys and pa.types.is_integer(table.schema.field(at).type):
            schema = schema.set(at, table.schema.field(at))
    return table.cast(schema).combine_chunks()


def _rows_by_key(table: pa.Table, keys: Sequence[str]) -> dict[KeyValues, list[int]]:
    found: dict[KeyValues, list[int]] = {}
    for row, key in enumerate(_keys_of(table, keys)):
        if key is not None:
            found.setdefault(key, []).append(row)
    return found


def _keys_of(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> Iterator[KeyValues | None]:
    """Yield each row's key; None where a part of it is null."""
    columns = [_comparable(rows[name]) for name in names]
    for key in zip(*columns, strict=True):
        yield None if None in key else key


def _comparable(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    type_ = values.type
    if pa.types.is_timestamp(type_):  # as a number: a time zone may have an hour that occurs twice
        values = values.cast(pa.timestamp("us", tz=type_.tz)).cast(pa.int64())
    found: list[Any] = values.to_pylist()
    if pa.types.is_floating(type_):  # to Spark, NaN is a value that equals itself
        found = ["NaN" if one is not None and one != one else one for one in found]
    return found


def matched(batch: pa.RecordBatch, loaded: Loaded, lookup: Lookup, named: Sides) -> pa.Table:
    """Return the rows of a batch joined with those of the table, in the order of both."""
    lefts: list[int] = []
    rights: list[int | None] = []
    nothing: list[int | None] = [None] if lookup.how == "left" else []
    for row, key in enumerate(_keys_of(batch, named.keys)):
        found = loaded.rows.get(key) if key is not None else None
        here: Sequence[int | None] = found or nothing
        lefts.extend([row] * len(here))
        rights.extend(here)
    one = pa.Table.from_batches([batch]).take(pa.array(lefts, pa.int64()))
    other = loaded.table.select(list(named.right)).take(pa.array(rights, pa.int64()))
    names = [*(named.left.get(name, name) for name in batch.schema.names), *named.right.values()]
    return pa.table([*one.columns, *other.columns], names=names)
