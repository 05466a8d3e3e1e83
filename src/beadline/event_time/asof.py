"""A join as of a time: each row is joined with the version that was valid at its time.

A left row *waits* in the state until the watermark has passed its time: by then, every version that
it could need has arrived. Versions of a key are kept as long as a row may need them: the newest one
at or before the watermark, and all newer ones.

State, per bucket of keys (see ``operator``): the waiting rows in chunks, as Arrow batches, whose
keys begin with the time of their first row, so that chunks which are not due are not read; and for
each key of the user its versions, as one Arrow batch. Next to each batch is a column of its rows'
type that is always null: it makes Spark refuse a checkpoint whose rows had other types. The names
of the columns, which an Arrow batch in the state does not have, are in the name of the map's key.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BooleanType, StructType

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.chains import check_follows
from beadline.event_time.codec import DROPPED, output_schema, place_of
from beadline.event_time.columns import check_binary, check_time, column_of
from beadline.event_time.groups import Ints, group, one_array, plain
from beadline.event_time.keys import digest, microseconds_of
from beadline.event_time.operator import Clock, Operator, apply_operator
from beadline.event_time.sides import (
    Delays,
    Sides,
    Suffixes,
    both_delays,
    check_streaming,
    one_of,
    sides,
    watermarked,
)
from beadline.event_time.windowed import LATE_ROWS
from beadline.outputs import LATE, MAIN, Outputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

LEFT, RIGHT = "left", "right"
LATE_VERSIONS = "beadline.late_versions"
_LATE_VERSIONS = "late_versions"
_BEFORE_ALL = -(2**62)
CHUNK_ROWS_MAX = 4096
_numbers = itertools.count()


def temporal_join(
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str] | str,
    *,
    left_time: str,
    right_time: str,
    how: Literal["inner", "left"] = "inner",
    watermark: Delays = None,
    late: Literal["drop", "side"] = "drop",
    deleted: str | None = None,
    suffixes: Suffixes | None = None,
) -> Outputs:
    """Join each left row with the newest right row of its key that is not newer than itself.

    The right side is a stream of versions: a price valid from a time on, an address since a time.
    Of several versions with the same time, the largest counts, compared by its columns from left to
    right. ``deleted`` names a boolean column of the right side: where it is true, there is no
    version from that time on. With ``how="left"`` a row without a version is emitted with nulls; a
    null key has no versions.

    A left row is emitted when both watermarks have passed its time. If they have passed it before
    the row arrives, it is late: it is counted, and with ``late="side"`` it goes to the output
    ``late``. A late version is still used for the rows that wait, and is counted
    (``beadline.late_versions``), since rows that it belongs to may have been emitted without it.
    ``watermark`` is as in ``interval_join``.

    >>> priced = temporal_join(orders, prices, on="product", left_time="ordered_at",
    ...                        right_time="valid_from", watermark="1 minute", how="left")
    """
    what = "temporal_join()"
    one_of(what, "how", how, ("inner", "left"))
    one_of(what, "late", late, ("drop", "side"))
    check_streaming(what, "left", left)
    check_streaming(what, "right", right)
    check_time(what, "left_time", left_time, left.schema)
    check_time(what, "right_time", right_time, right.schema)
    _check_deleted(what, deleted, right_time, right.schema)
    hidden = () if deleted is None else (deleted,)
    named = sides(what, left.schema, right.schema, on, suffixes, hidden=hidden)
    for name in named.keys:
        check_binary(f"{what}: on={name!r}", left.schema[name].dataType)
    check_follows(what, left)
    check_follows(what, right)
    left_delay, right_delay = both_delays(what, watermark)
    left = watermarked(what, "left", left, left_time, left_delay)
    right = watermarked(what, "right", right, right_time, right_delay)
    operator = AsOf(
        sides=named,
        left_time=left_time,
        right_time=right_time,
        left=_arrow(left.schema),
        right=_arrow(right.schema),
        keeps_unmatched=how == "left",
        keeps_late=late == "side",
        deleted=deleted,
    )
    keys = [_shared_key(name, left.schema) for name in named.keys]
    worked = apply_operator(_both(left, right, named.keys), keys, operator, operator.output)
    return _split(worked, keeps_late=late == "side")


def _check_deleted(what: str, deleted: str | None, right_time: str, schema: StructType) -> None:
    if deleted is None:
        return
    if deleted not in schema.names or not isinstance(schema[deleted].dataType, BooleanType):
        found = schema[deleted].dataType.simpleString() if deleted in schema.names else "not there"
        raise BadQuery(
            f"{what}: deleted={deleted!r} must be a boolean column of the right side, and it is "
            f"{found}. {NOTHING_WRITTEN}"
        )


def _arrow(schema: StructType) -> pa.Schema:
    """Return a side's schema in a parcel, where any value may be null."""
    found = to_arrow_schema(schema, timezone="UTC")
    assert found is not None
    return pa.schema([pa.field(one.name, one.type) for one in found])


def _both(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of both sides, each in its own column; versions of null keys are dropped."""
    for name in keys:
        right = right.where(column_of(name).isNotNull())
    one = F.struct(*(column_of(name) for name in left.columns)).alias(LEFT)
    other = F.struct(*(column_of(name) for name in right.columns)).alias(RIGHT)
    lefts = left.select(one, F.lit(None).cast(_nullable(right.schema)).alias(RIGHT))
    rights = right.select(F.lit(None).cast(_nullable(left.schema)).alias(LEFT), other)
    return lefts.union(rights)


def _nullable(schema: StructType) -> StructType:
    copied = StructType()
    for one in schema:
        copied = copied.add(one.name, one.dataType, nullable=True)
    return copied


def _shared_key(name: str, schema: StructType) -> Column:
    key = F.coalesce(*(column_of(side).getField(name) for side in (LEFT, RIGHT)))
    floats = schema[name].dataType.typeName() in ("float", "double")
    return key + F.lit(0.0) if floats else key  # 0.0 and -0.0 are one key


def _split(worked: DataFrame, *, keeps_late: bool) -> Outputs:
    """Count the late rows, and make an output of them if that was requested."""
    late = F.coalesce(F.col(DROPPED), F.lit(0))
    if keeps_late:
        late = F.when(F.col(LATE).isNotNull(), 1).otherwise(0)
    counted = worked.observe(
        f"{LATE_ROWS}_temporal{next(_numbers)}",
        F.coalesce(F.sum(late), F.lit(0)).alias(LATE_ROWS),
        F.coalesce(F.sum(_LATE_VERSIONS), F.lit(0)).alias(LATE_VERSIONS),
    )
    if not keeps_late:
        return Outputs.of(counted.where(F.col(MAIN).isNotNull()).select(f"{MAIN}.*"))
    is_row = F.col(MAIN).isNotNull() | F.col(LATE).isNotNull()
    return Outputs(counted.where(is_row).select(MAIN, LATE), (MAIN, LATE))


@dataclass
class AsOf(Operator):
    """The operator. ``left`` and ``right`` are the schemas of the two sides."""

    sides: Sides
    left_time: str
    right_time: str
    left: pa.Schema
    right: pa.Schema
    keeps_unmatched: bool = False
    keeps_late: bool = False
    deleted: str | None = None
    result: pa.Schema = field(init=False)
    output: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        """Determine the columns of the results."""
        shown = [(self.left, name, name) for name in self.sides.keys]
        shown += [(self.left, name, new) for name, new in self.sides.left.items()]
        shown += [(self.right, name, new) for name, new in self.sides.right.items()]
        self.result = pa.schema([(new, schema.field(name).type) for schema, name, new in shown])
        output = output_schema(self.result, self.left if self.keeps_late else None)
        self.output = output.append(pa.field(_LATE_VERSIONS, pa.int64()))

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        self._handle = handle
        on = f"on={self.sides.keys!r}"
        left = place_of(f"{on}, time={self.left_time!r}, columns={self.left.names!r}")
        right = place_of(f"{on}, time={self.right_time!r}, columns={self.right.names!r}")
        self._waiting: MapState = handle.getMapState("waiting", left, _state_of(self.left))
        self._versions: MapState = handle.getMapState("versions", right, _state_of(self.right))

    # -- input

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Add new versions, let new rows wait, and emit those that are due."""
        now_us = _now_us(clock)
        versions: dict[bytes, pa.Table] = {}
        rights = _side(rows, RIGHT, self.right)
        if rights.num_rows:
            yield from self._learn(rights, versions, now_us)
        lefts = _side(rows, LEFT, self.left)
        if lefts.num_rows:
            known = lefts[self.left_time].is_valid().to_numpy(zero_copy_only=False)
            in_time = known & (self._times(lefts, self.left_time) > now_us)
            if not in_time.all():
                yield self._late(lefts.filter(pa.array(~in_time)))
                lefts = lefts.filter(pa.array(in_time))
            self._wait(lefts)
        yield from self._answer(versions, now_us)

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Emit the rows that are due."""
        yield from self._answer({}, _now_us(clock))

    def _learn(
        self, rows: pa.Table, versions: dict[bytes, pa.Table], now_us: int
    ) -> Iterator[pa.Table]:
        """Add new versions to those of their keys."""
        known = rows[self.right_time].is_valid().to_numpy(zero_copy_only=False)
        late = ~known | (self._times(rows, self.right_time) <= now_us)
        if late.any():
            yield self._rows_of(None, MAIN, **{_LATE_VERSIONS: int(np.count_nonzero(late))})
        rows = rows.filter(pa.array(known))
        if not rows.num_rows:
            return
        groups = group(rows, self.sides.keys, self._times(rows, self.right_time))
        for key, start, end in zip(
            groups.firsts(self.sides.keys),
            groups.starts.tolist(),
            groups.ends.tolist(),
            strict=True,
        ):
            place = digest(key)
            held = versions[place] if place in versions else self._held(place)
            new = groups.table.slice(start, end - start)
            versions[place] = self._merged(held, new)

    def _merged(self, held: pa.Table, new: pa.Table) -> pa.Table:
        """Return versions in the order of their times, one for each time."""
        table = pa.concat_tables([held, new]).combine_chunks()
        times = self._times(table, self.right_time)
        order = np.argsort(times, kind="stable")
        ordered = times[order]
        first = np.append(True, ordered[1:] != ordered[:-1])
        if not first.all():
            columns = (plain(one_array(column)).to_pylist() for column in table.columns)
            ranks = [tuple(map(_rank_of, row)) for row in zip(*columns, strict=True)]
            order = np.array(sorted(range(len(ranks)), key=lambda at: (times[at], ranks[at])))
            order = order[np.append(first[1:], True)]  # the last of each time
        return table.take(pa.array(order))

    def _wait(self, rows: pa.Table) -> None:
        """Keep rows until they are due, and set a timer for the first of them."""
        if not rows.num_rows:
            return
        times = self._times(rows, self.left_time)
        order = np.argsort(times, kind="stable")
        rows, times = rows.take(pa.array(order)), times[order]
        for start in range(0, rows.num_rows, CHUNK_ROWS_MAX):
            place = _places(int(times[start]))
            free = next(one for one in place if not self._waiting.containsKey((one,)))
            self._waiting.updateValue((free,), _packed(rows.slice(start, CHUNK_ROWS_MAX)))
        self._wake(int(times[0]))

    def _wake(self, time_us: int) -> None:
        # Spark's watermark is 0 until there is one: a timer before 1970 would fire at once.
        self._handle.registerTimer(max(1, -(-time_us // 1000)))

    # -- output

    def _answer(self, versions: dict[bytes, pa.Table], now_us: int) -> Iterator[pa.Table]:
        """Emit the rows that are due; then drop the versions that no row can need anymore."""
        learned = set(versions)
        due = self._due(now_us)
        if due is not None and due.num_rows:
            results = self._matched(due, versions)
            if results.num_rows:
                yield self._rows_of(results, MAIN)
        for place, table in versions.items():
            self._keep(place, table, now_us, changed=place in learned)

    def _due(self, now_us: int) -> pa.Table | None:
        """Remove the rows that are due from the state, and return them."""
        places, later = [], None
        for (place,) in self._waiting.keys():  # noqa: SIM118 (a state, not a dictionary)
            if _first_time(place) > now_us:
                later = _first_time(place)
                break
            places.append(place)
        if later is not None:
            self._wake(later)
        if not places:
            return None
        tables = []
        for place in places:
            tables.append(_unpacked(self._waiting.getValue((place,)) or (), self.left))
            self._waiting.removeKey((place,))
        rows = pa.concat_tables(tables).combine_chunks()
        is_due = self._times(rows, self.left_time) <= now_us
        self._wait(rows.filter(pa.array(~is_due)))
        return rows.filter(pa.array(is_due))

    def _matched(self, due: pa.Table, versions: dict[bytes, pa.Table]) -> pa.Table:
        """Join each row with its version, or with nulls."""
        groups = group(due, self.sides.keys, self._times(due, self.left_time))
        found = np.full(due.num_rows, -1, dtype=np.int64)
        tables, before = [self.right.empty_table()], 0
        for key, start, end in zip(
            groups.firsts(self.sides.keys),
            groups.starts.tolist(),
            groups.ends.tolist(),
            strict=True,
        ):
            place = digest(key)
            if place not in versions:
                versions[place] = self._held(place)
            table = versions[place]
            times = self._times(table, self.right_time)
            at = np.searchsorted(times, groups.times[start:end], side="right") - 1
            found[start:end] = np.where(at < 0, -1, at + before)
            tables.append(table)
            before += table.num_rows
        rights = pa.concat_tables(tables).combine_chunks()
        missing = found < 0
        if self.deleted is not None and rights.num_rows:
            gone = pc.fill_null(rights[self.deleted], False).to_numpy(zero_copy_only=False)
            missing |= gone[np.maximum(found, 0)] & ~missing
        lefts = groups.table
        if not self.keeps_unmatched:
            lefts, found = lefts.filter(pa.array(~missing)), found[~missing]
            missing = np.zeros(len(found), dtype=bool)
        rights = rights.take(pa.array(found, mask=missing))
        columns = [
            *(lefts[name] for name in (*self.sides.keys, *self.sides.left)),
            *(rights[name] for name in self.sides.right),
        ]
        return pa.table(columns, schema=self.result)

    def _late(self, rows: pa.Table) -> pa.Table:
        if self.keeps_late:
            return self._rows_of(rows, LATE)
        return self._rows_of(None, MAIN, **{DROPPED: rows.num_rows})

    def _rows_of(self, rows: pa.Table | None, tag: str, **counted: int) -> pa.Table:
        """Return rows in the column of their output, or one row with counts."""
        many = 1 if rows is None else rows.num_rows
        columns = []
        for one in self.output:
            if one.name == tag and rows is not None:
                columns.append(rows.cast(pa.schema(list(one.type))).to_struct_array())
            elif one.name in counted:
                columns.append(pa.array([counted[one.name]] * many, one.type))
            else:
                columns.append(pa.nulls(many, one.type))
        return pa.table(columns, schema=self.output)

    # -- the versions of a key

    def _held(self, place: bytes) -> pa.Table:
        held = self._versions.getValue((place,))
        return self.right.empty_table() if held is None else _unpacked(held, self.right)

    def _keep(self, place: bytes, table: pa.Table, now_us: int, *, changed: bool) -> None:
        """Store the versions that future rows may need: the newest one by now, and all newer."""
        times = self._times(table, self.right_time)
        first = max(int(np.searchsorted(times, now_us, side="right")) - 1, 0)
        past = first < table.num_rows and times[first] <= now_us
        if past and self.deleted is not None and table[self.deleted][first].as_py():
            first += 1  # a deleted version is equivalent to none
        kept = table.slice(first)
        if not changed and not first:
            return
        if kept.num_rows:
            self._versions.updateValue((place,), _packed(kept))
        else:
            self._versions.removeKey((place,))

    @staticmethod
    def _times(rows: pa.Table, name: str) -> Ints:
        return microseconds_of(rows[name])


def _now_us(clock: Clock) -> int:
    """Return the watermark; before the first one, nothing is late."""
    return clock.watermark_ms * 1000 if clock.watermark_ms > 0 else _BEFORE_ALL


def _side(rows: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """Return the rows of one side."""
    here = rows[name].combine_chunks()
    here = here.filter(here.is_valid())
    return pa.table(here.flatten(), names=schema.names).cast(schema)


def _state_of(schema: pa.Schema) -> StructType:
    rows = pa.field("rows", pa.binary())
    # The names of columns do not matter to Spark's comparison; the types do.
    types = [pa.field(f"column_{at}", one.type) for at, one in enumerate(schema)]
    return from_arrow_schema(pa.schema([rows, pa.field("types", pa.struct(types))]))


def _packed(rows: pa.Table) -> tuple[bytes, None]:
    """Return rows as a value of the state: an Arrow batch without its schema, and a null."""
    (batch,) = rows.combine_chunks().to_batches()
    return batch.serialize().to_pybytes(), None


def _unpacked(held: Sequence[Any], schema: pa.Schema) -> pa.Table:
    batch = pa.ipc.read_record_batch(pa.py_buffer(bytes(held[0])), schema)
    return pa.Table.from_batches([batch])


def _places(time_us: int) -> Iterator[bytes]:
    """Yield keys of the state for chunks that begin at a time: there may be several such chunks."""
    return (struct.pack(">QI", time_us + 2**63, number) for number in itertools.count())


def _first_time(place: bytes) -> int:
    return int(struct.unpack(">Q", bytes(place[:8]))[0]) - 2**63


def _rank_of(value: Any) -> tuple[int, Any]:
    """Return a sort key for the values of a column; null is smallest, NaN largest."""
    if value is None:
        return 0, 0
    if isinstance(value, float) and value != value:
        return 2, 0
    return 1, repr(value) if isinstance(value, list | dict) else value
