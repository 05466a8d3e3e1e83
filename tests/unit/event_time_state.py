"""Spark's state in memory, and epochs as Spark runs them: operators without Spark, in microseconds.

What the real store does to values is done here too: they are verified and converted by their
schema, keys are in the order of their bytes, and each epoch has a new instance of the operator, so
that nothing is remembered but what is in the state.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StructField,
    StructType,
    _make_type_verifier,
)

from beadline.event_time.groups import plain
from beadline.event_time.operator import Clock, Operator

State = TypeVar("State")
# The few DDL strings that operators use; Spark's own parser needs a JVM.
_TYPES = {"binary": BinaryType(), "boolean": BooleanType(), "bigint": LongType()}


def struct_of(schema: StructType | str) -> StructType:
    """Return a state's schema."""
    if isinstance(schema, StructType):
        return schema
    pairs = (column.split() for column in schema.split(","))
    return StructType([StructField(name, _TYPES[kind.lower()]) for name, kind in pairs])


def tie_of(row: dict[str, Any]) -> int:
    """What Spark's hash of a row is for: the same for the same values, and in no other order."""
    text = repr(sorted(row.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class StoredRows:
    """Values of one schema, as they come back from the JVM."""

    def __init__(self, schema: StructType | str) -> None:
        self.schema = struct_of(schema)
        self.verify = _make_type_verifier(self.schema)

    def stored(self, value: Sequence[Any]) -> tuple[Any, ...]:
        self.verify(tuple(value))
        return tuple(self.schema.toInternal(tuple(value)))


class MemoryMap:
    """A map state."""

    def __init__(self, key: StructType | str, value: StructType | str) -> None:
        self.keys_of, self.values_of = StoredRows(key), StoredRows(value)
        self.held: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def exists(self) -> bool:
        return bool(self.held)

    def getValue(self, key: Sequence[Any]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.held.get(self.keys_of.stored(key))

    def containsKey(self, key: Sequence[Any]) -> bool:  # noqa: N802
        return self.keys_of.stored(key) in self.held

    def updateValue(self, key: Sequence[Any], value: Sequence[Any]) -> None:  # noqa: N802
        self.held[self.keys_of.stored(key)] = self.values_of.stored(value)

    def removeKey(self, key: Sequence[Any]) -> None:  # noqa: N802
        self.held.pop(self.keys_of.stored(key), None)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter(sorted(self.held))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([self.held[key] for key in sorted(self.held)])

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter(sorted(self.held.items(), key=lambda pair: pair[0]))

    def clear(self) -> None:
        self.held.clear()


class MemoryValue:
    """A value state."""

    def __init__(self, schema: StructType | str) -> None:
        self.rows = StoredRows(schema)
        self.held: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self.held is not None

    def get(self) -> tuple[Any, ...] | None:
        return self.held

    def update(self, value: Sequence[Any]) -> None:
        self.held = self.rows.stored(value)

    def clear(self) -> None:
        self.held = None


class MemoryList:
    """A list state."""

    def __init__(self, schema: StructType | str) -> None:
        self.rows = StoredRows(schema)
        self.held: list[tuple[Any, ...]] = []

    def exists(self) -> bool:
        return bool(self.held)

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter(list(self.held))

    def put(self, values: Sequence[Sequence[Any]]) -> None:
        self.held = [self.rows.stored(value) for value in values]

    def appendValue(self, value: Sequence[Any]) -> None:  # noqa: N802
        self.held.append(self.rows.stored(value))

    def appendList(self, values: Sequence[Sequence[Any]]) -> None:  # noqa: N802
        self.held.extend(self.rows.stored(value) for value in values)

    def clear(self) -> None:
        self.held = []


class MemoryHandle:
    """The state and the timers of one key of Spark's."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.timers: set[int] = set()

    def getMapState(  # noqa: N802
        self, name: str, key: StructType | str, value: StructType | str
    ) -> MemoryMap:
        return self._state(name, MemoryMap(key, value))

    def getValueState(self, name: str, schema: StructType | str) -> MemoryValue:  # noqa: N802
        return self._state(name, MemoryValue(schema))

    def getListState(self, name: str, schema: StructType | str) -> MemoryList:  # noqa: N802
        return self._state(name, MemoryList(schema))

    def _state(self, name: str, new: State) -> State:
        state: State = self.states.setdefault(name, new)
        return state

    def registerTimer(self, expiry_ms: int) -> None:  # noqa: N802
        assert isinstance(expiry_ms, int)
        self.timers.add(expiry_ms)

    def deleteTimer(self, expiry_ms: int) -> None:  # noqa: N802
        self.timers.discard(expiry_ms)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return iter(sorted(self.timers))

    @property
    def size(self) -> int:
        """How many entries the state has."""
        held = (state.held for state in self.states.values())
        return sum(len(one) if isinstance(one, (dict, list)) else one is not None for one in held)


@dataclass
class Told:
    """What an epoch brought out: rows by the name of their output, times as microseconds."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> list[dict[str, Any]]:
        return self.rows.get(name, [])

    def add(self, table: pa.Table) -> None:
        for name in table.column_names:
            column = table[name].combine_chunks().drop_null()
            if pa.types.is_struct(column.type):
                arrays = [plain(one) for one in column.flatten()]
                rows = pa.table(arrays, names=[one.name for one in column.type]).to_pylist()
            else:
                rows = [{name: value} for value in column.to_pylist()]
            self.rows.setdefault(name, []).extend(rows)


class EpochRunner:
    """Feeds an operator as Spark does: watermark, rows, timers, and an epoch without rows.

    The watermark of an epoch is the largest time of all earlier ones, late rows too, less the
    delay, in whole milliseconds; it never falls, and is 0 before the first.
    """

    def __init__(
        self, operator: Operator, schema: pa.Schema, *, time: str | None = None, delay_ms: int = 0
    ) -> None:
        self.operator, self.schema = operator, schema
        self.time, self.delay_ms = time, delay_ms
        self.handle = MemoryHandle()
        self.watermark_ms = self.now_ms = 0
        self.processing_time = False
        self._run_with = 0  # the watermark of the newest epoch
        self.watermarks_ms: list[int] = []  # of all of them

    def epoch(self, rows: Sequence[dict[str, Any]], *, more: bool = False) -> Told:
        """Run an epoch; unless ``more`` rows are there already, the one without rows behind it."""
        told = Told()
        self._run(rows, told)
        if not more and self.watermark_ms != self._run_with:
            self._run([], told)
        return told

    def advance(self, watermark_ms: int) -> Told:
        """Run an epoch whose rows, and those that have moved the watermark, are of other keys."""
        told = Told()
        self.watermark_ms = max(self.watermark_ms, watermark_ms)
        self._run([], told)
        return told

    def _run(self, rows: Sequence[dict[str, Any]], told: Told) -> None:
        clock = Clock(self.watermark_ms, self.now_ms)
        self._run_with = self.watermark_ms
        self.watermarks_ms.append(self.watermark_ms)
        operator = copy.deepcopy(self.operator)
        operator.open(self.handle)  # type: ignore[arg-type]
        if rows:
            given = sorted(rows, key=tie_of) if operator.ordered else rows
            table = pa.Table.from_pylist(list(given), self.schema)
            for output in operator.process(table, clock):
                told.add(output)
        now_ms = self.now_ms if self.processing_time else self.watermark_ms
        # Timers set while others fire are of a later epoch: Spark reads them beforehand.
        for timer in sorted(one for one in self.handle.timers if one <= now_ms):
            for output in operator.expire(timer, clock):
                told.add(output)
            self.handle.timers.discard(timer)
        self._move(rows)

    def _move(self, rows: Sequence[dict[str, Any]]) -> None:
        if self.time is None:
            return
        for row in rows:
            if row[self.time] is not None:  # microseconds
                self.watermark_ms = max(self.watermark_ms, row[self.time] // 1000 - self.delay_ms)
