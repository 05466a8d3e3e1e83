"""Spark's state in memory, so that stateful operators run without Spark: for many small cases.

It does what operators rely on: a map's keys come in the order of their bytes, a timer fires once,
in the first epoch whose watermark has reached it, after that epoch's rows. What an operator keeps
outside the state is lost between epochs, as it is in Spark.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from beadline.event_time.operator import Clock, Operator

Pair = tuple[tuple[Any, ...], tuple[Any, ...]]


class MapInMemory:
    """A map state."""

    def __init__(self) -> None:
        self.held: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self.held.get(tuple(key))

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return tuple(key) in self.held

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        self.held[tuple(key)] = tuple(value)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        self.held.pop(tuple(key), None)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter(sorted(self.held))

    def iterator(self) -> Iterator[Pair]:
        return iter(sorted(self.held.items()))


class ValueInMemory:
    """A value state."""

    def __init__(self) -> None:
        self.held: tuple[Any, ...] | None = None

    def get(self) -> tuple[Any, ...] | None:
        return self.held

    def update(self, value: tuple[Any, ...]) -> None:
        self.held = tuple(value)

    def exists(self) -> bool:
        return self.held is not None

    def clear(self) -> None:
        self.held = None


@dataclass
class Bucket:
    """One bucket of an operator: its state, its timers, and the epochs that it goes through."""

    operator: Operator
    states: dict[str, Any] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)

    def getMapState(self, name: str, key: Any, value: Any) -> MapInMemory:  # noqa: N802
        return cast(MapInMemory, self.states.setdefault(name, MapInMemory()))

    def getValueState(self, name: str, schema: Any) -> ValueInMemory:  # noqa: N802
        return cast(ValueInMemory, self.states.setdefault(name, ValueInMemory()))

    def registerTimer(self, time_ms: int) -> None:  # noqa: N802
        self.timers.add(time_ms)

    def deleteTimer(self, time_ms: int) -> None:  # noqa: N802
        self.timers.discard(time_ms)

    def epoch(self, rows: pa.Table | None, watermark_ms: int, now_ms: int = 0) -> list[pa.Table]:
        """Run one epoch; return what it yields."""
        operator = copy.deepcopy(self.operator)
        operator.open(cast(Any, self))
        clock = Clock(watermark_ms, now_ms)
        found = []
        if rows is not None and rows.num_rows:
            found += list(operator.process(rows, clock))
        for time_ms in sorted(time for time in self.timers if time <= watermark_ms):
            self.timers.discard(time_ms)
            found += list(operator.expire(time_ms, clock))
        return found
