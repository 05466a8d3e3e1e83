"""The rows of each window and key with the largest values, and their ranks.

The top rows of a window are an aggregate like any other, so lateness, revisions and early results
work as for windows: a late row that changes the ranking makes the window fire again, with all of
its ranks. Windows only gain rows, so a rank that was emitted once is in every later revision, and
an upsert by key, ``window_start`` and ``rank`` is always right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.aggregates import Aggregate, Partial
from beadline.event_time.codec import DELETED, END, REVISION, START
from beadline.event_time.columns import column_of
from beadline.event_time.groups import one_array, plain
from beadline.event_time.operator import to_arrow
from beadline.outputs import MAIN, Outputs

if TYPE_CHECKING:
    from pyspark.sql import Column

    from beadline.event_time.groups import Groups
    from beadline.event_time.windowed import WindowedRows

RANK = "rank"
_TOP = "beadline_top"
_ROW = "beadline_row"
_BEHIND = (REVISION, DELETED)


@dataclass(frozen=True)
class Top(Aggregate):
    """The first ``n`` rows of a window, in an order that does not depend on their arrival.

    ``rows`` is the schema of the columns that are kept; rows are ordered by the first column, and
    the others break ties, from left to right, the smaller first. Nulls and NaN come last.
    """

    n: int
    rows: pa.Schema
    descending: bool = True
    column: str | None = None

    def ordered(self, column: pa.DataType | None) -> bool:
        """Only of 0.0 and -0.0 the first one counts: all other values are sorted."""
        return any(pa.types.is_floating(one.type) for one in self.rows)

    @property
    def kind(self) -> str:
        """The settings without pyarrow's own text of a schema, which is another one by version."""
        columns = [(one.name, str(one.type)) for one in self.rows]
        settings = (self.n, columns, self.descending)
        return f"top_{crc32(repr(settings).encode()):08x}"

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The rows as an Arrow batch, and a null of their type, by which Spark compares states."""
        types = [pa.field(f"column_{at}", one.type) for at, one in enumerate(self.rows)]
        return [pa.binary(), pa.struct(types)]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A list of rows."""
        return pa.list_(pa.struct(list(self.rows)))

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Sort all rows at once, and take the first ones of each group."""
        numbers = np.repeat(np.arange(len(groups)), groups.ends - groups.starts)
        table = groups.table.select(self.rows.names).cast(self.rows)
        order = self._order(table, numbers).to_numpy()
        places = (
            np.arange(len(order)) - groups.starts[numbers]
        )  # groups keep their places when sorted
        first = places < self.n
        kept = table.take(pa.array(order[first])).combine_chunks()
        ends = np.cumsum(np.bincount(numbers[first], minlength=len(groups))).tolist()
        starts = [0, *ends[:-1]]
        return [
            (_bytes(kept.slice(start, end - start)), None)
            for start, end in zip(starts, ends, strict=True)
        ]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Sort the rows of both, and keep the first ones."""
        table = pa.concat_tables([self._table(one), self._table(other)])
        order = self._order(table, np.zeros(table.num_rows, dtype=np.int64))
        return _bytes(table.take(order[: self.n])), None

    def result(self, partial: Partial) -> Any:
        """The rows in the order of their ranks; plain, as a time may be too far for Python."""
        table = self._table(partial)
        columns = [plain(one_array(column)) for column in table.columns]
        return pa.table(columns, names=table.column_names).to_pylist()

    def _order(self, table: pa.Table, groups: Any) -> pa.Array:
        # By position: a table may have a column of any name.
        columns = {f"column_{at}": one for at, one in enumerate(table.columns)}
        sortable = pa.table({"group": groups, **columns})
        orders = dict.fromkeys(sortable.column_names, "ascending")
        orders["column_0"] = "descending" if self.descending else "ascending"
        return pc.sort_indices(sortable, sort_keys=list(orders.items()))

    def _table(self, partial: Partial) -> pa.Table:
        batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(partial[0])), self.rows)
        return pa.Table.from_batches([batch])


def _bytes(table: pa.Table) -> bytes:
    (batch,) = table.combine_chunks().to_batches()
    return bytes(batch.serialize().to_pybytes())


def top_rows(
    windows: WindowedRows,
    n: int,
    order_by: str,
    columns: Sequence[str] | None,
    *,
    descending: bool,
) -> Outputs:
    """Return the first rows of each window, one row for each rank."""
    kept = _checked(windows, n, order_by, columns)
    schema = to_arrow(windows.frame)
    rows = pa.schema([pa.field(name, schema.field(name).type) for name in kept])
    results = windows.agg(**{_TOP: Top(n, rows, descending)})
    if results.plain:
        others = [name for name in results.frame.columns if name != _TOP]
        ranked = results.frame.select(*map(column_of, others), F.posexplode(_TOP).alias(RANK, _ROW))
        return Outputs.of(ranked.select(*_in_order(others, kept)))
    # Rows of the other outputs have no list, and stay one row.
    exploded = F.posexplode_outer(column_of(MAIN).getField(_TOP)).alias(RANK, _ROW)
    ranked = results.frame.select(*map(column_of, results.names), exploded)
    others = [name for name in results.frame.select(f"{MAIN}.*").columns if name != _TOP]
    main = F.when(column_of(MAIN).isNotNull(), F.struct(*_in_order(others, kept, inside=MAIN)))
    rest = (column_of(name) for name in results.names if name != MAIN)
    return replace(results, frame=ranked.select(main.alias(MAIN), *rest))


def _in_order(others: Sequence[str], kept: Sequence[str], inside: str = "") -> list[Column]:
    """Return the columns of the results: key and window, rank, the row, then the others."""
    behind = [name for name in others if name in _BEHIND]
    before = [name for name in others if name not in behind]

    def of(name: str) -> Column:
        return (column_of(inside).getField(name) if inside else column_of(name)).alias(name)

    return [
        *map(of, before),
        (F.col(RANK) + 1).alias(RANK),
        *(F.col(_ROW).getField(name).alias(name) for name in kept),
        *map(of, behind),
    ]


def _checked(
    windows: WindowedRows, n: int, order_by: str, columns: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the columns that are kept; the first is the one to order by."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BadQuery(
            f"top({n!r}): the number of rows must be an integer, at least 1. {NOTHING_WRITTEN}"
        )
    types = {one.name: one.type for one in to_arrow(windows.frame)}
    names = [name for name in types if name not in windows.by] if columns is None else columns
    kept = (order_by, *(name for name in names if name != order_by))
    for name in kept:
        if name not in types:
            raise BadQuery(
                f"top(): there is no column {name!r}; there are {', '.join(types)}. "
                f"{NOTHING_WRITTEN}"
            )
        if pa.types.is_nested(types[name]):
            raise BadQuery(
                f"top(): column {name!r} is of type {types[name]}, whose values have no order and "
                "cannot break a tie: list the columns to keep without it, columns=[...], or make "
                f"it a string with to_json(). {NOTHING_WRITTEN}"
            )
    by = [name.lower() for name in windows.by]  # Spark's names ignore case
    taken = {*by, START, END, REVISION, DELETED, RANK}
    twice = [name for name in kept if name.lower() in taken] or [
        name for name in windows.by if name.lower() == RANK
    ]
    if twice:
        raise BadQuery(
            f"top(): the results already have a column {twice[0]!r}: rename yours, or list the "
            f"columns to keep without it, columns=[...]. {NOTHING_WRITTEN}"
        )
    return kept
