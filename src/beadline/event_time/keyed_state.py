"""State of a ``KeyedProcess``: values, lists and maps of one key, and their columns.

A call to Spark's state store takes a Python worker about a tenth of a millisecond, longer than most
rows take. So a key's state is read once in an epoch, and written once, after the last row of the
key.

Values are checked here before they are passed to Spark, which silently stores null for a value of
the wrong type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timezone
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    Row,
    StructField,
    StructType,
    TimestampType,
)

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.durations import Duration, milliseconds

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_VALUE = "value"  # the column of a state that holds one plain value
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_NAMED = re.compile(r"\s*(?:`([^`]+)`|(\w+))(?:\s*:\s*|\s+)\w")
_NOT_READ: Any = object()
_Update = Callable[[Any], Any]


@dataclass(frozen=True)
class KeyedColumns:
    """The columns of an output or of a state; without types if no Spark was there to parse them."""

    names: tuple[str, ...]
    schema: StructType | None = None
    plain: bool = False  # a single value whose column has no name

    @staticmethod
    def of(what: str, given: str | DataType) -> KeyedColumns:
        """Parse the columns that a user gave; ``what`` says what they are for, in errors.

        Spark's parser reads DDL. If no Spark runs, as in a test, only the names are known.
        """
        from pyspark import SparkContext
        from pyspark.errors import PySparkException

        if isinstance(given, str) and SparkContext._active_spark_context is None:
            return names_of(given)
        if not isinstance(given, str | DataType):
            raise BadQuery(
                f"{what} takes columns as DDL, such as 'user string, n bigint', or a StructType, "
                f"not {type(given).__name__}. {NOTHING_WRITTEN}"
            )
        try:
            read = DataType.fromDDL(given) if isinstance(given, str) else given
        except PySparkException as error:
            said = str(error).strip().partition("\n")[0]
            raise BadQuery(
                f"{what}: {given!r} cannot be parsed as columns, such as 'user string, n bigint'. "
                f"Spark says: {said} {NOTHING_WRITTEN}"
            ) from None
        plain = not isinstance(read, StructType)
        schema = read if isinstance(read, StructType) else StructType([StructField(_VALUE, read)])
        columns = KeyedColumns(tuple(schema.fieldNames()), schema, plain)
        columns._check(what)
        return columns

    def _check(self, what: str) -> None:
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice or not self.names:
            said = f"two columns named {min(twice)!r}" if twice else "no columns"
            raise BadQuery(f"{what} has {said}. {NOTHING_WRITTEN}")
        try:
            self.arrow()
        except Exception as error:  # noqa: BLE001 (Spark's own, of several classes)
            raise BadQuery(
                f"{what} has a column of a type that Spark cannot convert for Python: "
                f"{str(error).partition(chr(10))[0]} {NOTHING_WRITTEN}"
            ) from None

    def arrow(self) -> pa.Schema | None:
        """Return the columns' Arrow types."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return None if self.schema is None else to_arrow_schema(self.schema, timezone="UTC")

    def codec(self, what: str) -> KeyedCodec:
        """Return a codec that checks and converts values for these columns."""
        return KeyedCodec(what, self)


class KeyedCodec:
    """Converts Python values to rows and back: checked on the way in, copied on the way out."""

    def __init__(self, what: str, columns: KeyedColumns) -> None:
        """``what`` says what the columns belong to, in errors."""
        self._what = what
        self.columns = columns
        self._row = Row(*columns.names)
        self._fields: list[_KeyedField] | None = None  # None if the types are not known
        schema, arrow = columns.schema, columns.arrow()
        if schema is not None and arrow is not None:
            pairs = zip(schema, arrow, strict=True)
            self._fields = [_KeyedField.of(spark, column) for spark, column in pairs]

    def named(self, given: Any) -> dict[str, Any]:
        """Return a row as a dict; it must have exactly the columns of this codec."""
        names = self.columns.names
        if isinstance(given, Row) and hasattr(given, "__fields__"):
            given = given.asDict()
        if isinstance(given, Mapping):
            if given.keys() != set(names):
                raise TypeError(f"{self._what} {self._difference(given)}")
            return {name: given[name] for name in names}
        if not isinstance(given, tuple | list):
            raise TypeError(
                f"{self._what} takes a row: a dict, a Row or a tuple of {', '.join(names)}, not "
                f"{type(given).__name__}"
            )
        if len(given) != len(names):
            raise TypeError(
                f"{self._what} has {len(names)} columns ({', '.join(names)}), but the row has "
                f"{len(given)} values"
            )
        return dict(zip(names, given, strict=True))

    def _difference(self, given: Mapping[str, Any]) -> str:
        names = self.columns.names
        more = sorted(str(name) for name in given if name not in names)
        less = [name for name in names if name not in given]
        parts = []
        if less:
            parts.append(f"without its column {', '.join(map(repr, less))}")
        if more:
            parts.append(f"with {', '.join(map(repr, more))}, which it does not have")
        return f"has the columns {', '.join(names)}; the row is {' and '.join(parts)}"

    def check(self, rows: list[dict[str, Any]]) -> None:
        """Refuse rows that do not fit; errors name column and type, but never values."""
        for one in (self._fields or ()) if rows else ():
            self._fit(one, [row[one.name] for row in rows])

    def encode(self, given: Any) -> tuple[Any, ...]:
        """Return a value in the form that Spark takes."""
        values = (given,) if self.columns.plain else tuple(self.named(given).values())
        if self._fields is None:
            return values
        return tuple(
            _applied(one.fresh, self._fit(one, [value])[0].as_py())
            for one, value in zip(self._fields, values, strict=True)
        )

    def decode(self, held: Iterable[Any]) -> Any:
        """Return a value held by Spark as the process sees it: a copy of its own."""
        values = list(held)
        if self._fields is not None:
            pairs = zip(self._fields, values, strict=True)
            values = [_applied(one.fresh, value) for one, value in pairs]
        return values[0] if self.columns.plain else self._row(*values)

    def _fit(self, one: _KeyedField, values: list[Any]) -> pa.Array:
        if one.nested:
            values = [_without_rows(value) for value in values]
        try:
            if one.exact and not all(_is_whole(one.type, value) for value in values):
                raise TypeError  # Arrow would cut off the fraction
            array = pa.array(values, one.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for value in values if len(values) > 1 else ():
                self._fit(one, [value])
            found = type(values[0]).__name__
            raise self._misfit(one, f"a value of type {found} does not fit") from None
        if array.null_count and not one.nullable:
            raise self._misfit(one, "it is NOT NULL, but the value is null")
        if one.zoned and any(value is not None and _is_naive(value) for value in values):
            said = "a datetime without a time zone does not fit, as it could be any instant"
            raise self._misfit(one, said)
        return array

    def _misfit(self, one: _KeyedField, said: str) -> TypeError:
        name = "" if self.columns.plain else f", column {one.name!r}"
        return TypeError(f"{self._what}{name} ({one.ddl}): {said}")


class _KeyedField(NamedTuple):
    """One column, and the checks and conversions of its values."""

    name: str
    type: pa.DataType
    ddl: str
    nullable: bool
    nested: bool
    exact: bool
    zoned: bool
    fresh: _Update | None

    @staticmethod
    def of(spark: StructField, arrow: pa.Field) -> _KeyedField:
        """Determine them once."""
        nested = pa.types.is_nested(arrow.type)
        return _KeyedField(
            name=spark.name,
            type=arrow.type,
            ddl=spark.dataType.simpleString(),
            nullable=arrow.nullable,
            nested=nested,
            exact=nested or pa.types.is_integer(arrow.type),
            zoned=pa.types.is_timestamp(arrow.type) and arrow.type.tz is not None,
            fresh=fresh(spark.dataType),
        )


def _is_naive(value: Any) -> bool:
    return getattr(value, "tzinfo", None) is None


def _is_whole(type_: pa.DataType, value: Any) -> bool:
    """Whether a value has integers wherever its type has."""
    if value is None or type(value) is int:
        return True
    if pa.types.is_integer(type_):
        return isinstance(value, Integral)
    if pa.types.is_list(type_):
        return all(_is_whole(type_.value_type, one) for one in value)
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        return all(_is_whole(type_.key_type, k) and _is_whole(type_.item_type, v) for k, v in pairs)
    if pa.types.is_struct(type_) and isinstance(value, Mapping):
        return all(_is_whole(one.type, value.get(one.name)) for one in type_)
    return True


def _applied(change: _Update | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


def _without_rows(value: Any) -> Any:
    """Return a value with dicts instead of Rows: Arrow takes a Row, a tuple, for a list."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        value = value.asDict()
    if isinstance(value, Mapping):
        return {name: _without_rows(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_rows(one) for one in value]
    return value


def fresh(type_: DataType) -> _Update | None:
    """Return a function that copies a value of Arrow or Spark for a process; None if not needed.

    Times are in UTC, where adding five minutes adds five minutes even in the night of a clock
    change; structs become Rows, maps become dicts.
    """
    if isinstance(type_, TimestampType):
        return lambda value: value.astimezone(timezone.utc)
    if isinstance(type_, BinaryType):
        return bytes
    if isinstance(type_, ArrayType):
        element = fresh(type_.elementType)
        return lambda value: [_applied(element, one) for one in value]
    if isinstance(type_, MapType):
        key, held = fresh(type_.keyType), fresh(type_.valueType)
        return lambda value: {_applied(key, k): _applied(held, v) for k, v in dict(value).items()}
    if isinstance(type_, StructType):
        row = Row(*type_.fieldNames())
        changes = [fresh(one.dataType) for one in type_]
        return lambda value: row(*map(_applied, changes, _values(value)))
    return None


def _values(struct: Any) -> Iterable[Any]:
    return struct.values() if isinstance(struct, Mapping) else struct


def names_of(ddl: str) -> KeyedColumns:
    """Return the column names in a DDL string, found without Spark's parser."""
    depth, parts = 0, [""]
    for char in ddl:
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    found = [_NAMED.match(part) for part in parts]
    if found == [None]:
        return KeyedColumns((_VALUE,), plain=True)
    return KeyedColumns(tuple((one.group(1) or one.group(2)) if one else "?" for one in found))


# -- declarations of a process


@dataclass(frozen=True)
class StateDeclaration:
    """One state of a process, as its ``open`` declared it."""

    kind: str
    name: str
    given: tuple[Any, ...]  # the user's arguments, for comparison
    key: KeyedColumns | None
    columns: KeyedColumns
    ttl_ms: int | None


@dataclass
class KeyScope:
    """Whether a key is being processed, to which states belong."""

    in_key: bool = False

    def check(self, name: str) -> None:
        """Refuse the use of a state outside of a key."""
        if not self.in_key:
            raise RuntimeError(
                f"state {name!r} belongs to a key: it can be used in process(), process_rows() and "
                "on_timer() only"
            )


OpenedStates = list["_AnyState"]


class KeyedStates:
    """The argument of ``open``, with which a process declares its states."""

    def __init__(self, process: str, *, ttl: bool) -> None:
        """``ttl`` is whether states may expire, which Spark allows in processing time only."""
        self.declared: dict[str, StateDeclaration] = {}
        self._process = process
        self._ttl = ttl

    def value(self, name: str, ddl: str | DataType, *, ttl: Duration | None = None) -> KeyedValue:
        """Declare one value: ``"bigint"``, or several columns, ``"n bigint, last timestamp"``."""
        made: KeyedValue = self._made(KeyedValue, self._declare("value", name, (ddl,), ttl))
        return made

    def list(self, name: str, ddl: str | DataType, *, ttl: Duration | None = None) -> KeyedList:
        """Declare a list of values."""
        made: KeyedList = self._made(KeyedList, self._declare("list", name, (ddl,), ttl))
        return made

    def map(
        self, name: str, key: str | DataType, ddl: str | DataType, *, ttl: Duration | None = None
    ) -> KeyedMap:
        """Declare a map, with the types of its keys and values."""
        made: KeyedMap = self._made(KeyedMap, self._declare("map", name, (key, ddl), ttl))
        return made

    def _declare(
        self, kind: str, name: str, given: tuple[Any, ...], ttl: Duration | None
    ) -> StateDeclaration:
        what = f"state.{kind}({name!r}) of {self._process}"
        if not isinstance(name, str) or not _NAME.match(name):
            raise BadQuery(
                f"{what}: a state's name consists of letters, digits and _, and begins with a "
                f"letter. {NOTHING_WRITTEN}"
            )
        if name in self.declared:
            raise BadQuery(f"{what}: there is already a state of this name. {NOTHING_WRITTEN}")
        if ttl is not None and not self._ttl:
            raise BadQuery(
                f"{what}: ttl= works in processing time, but Spark has one clock per operator, "
                "which is event time here. Clear the state with a timer, "
                f"ctx.timer(row.ts + timedelta(hours=1)), or use clock='processing'. "
                f"{NOTHING_WRITTEN}"
            )
        *keys, columns = (KeyedColumns.of(what, one) for one in given)
        ttl_ms = None if ttl is None else milliseconds("ttl", ttl)
        found = StateDeclaration(
            kind, name, (*given, ttl), keys[0] if keys else None, columns, ttl_ms
        )
        self.declared[name] = found
        return found

    def _made(self, kind: type[_AnyState], found: StateDeclaration) -> Any:
        return kind(found, None, KeyScope())


class OpenKeyedStates(KeyedStates):
    """Opens the declared states where the process runs, on Spark's handle."""

    def __init__(
        self,
        process: str,
        before: Mapping[str, StateDeclaration],
        handle: StatefulProcessorHandle,
        scope: KeyScope,
    ) -> None:
        """``before`` are the declarations made when the query was defined."""
        super().__init__(process, ttl=True)
        self._before = before
        self._handle = handle
        self._scope = scope
        self.opened: OpenedStates = []

    def _declare(
        self, kind: str, name: str, given: tuple[Any, ...], ttl: Duration | None
    ) -> StateDeclaration:
        found = self._before.get(name)
        if found is None or (found.kind, found.given) != (kind, (*given, ttl)):
            raise RuntimeError(
                f"open() of {self._process} declares state {name!r} differently than when the "
                "query was defined: it must declare the same states each time and wherever it runs"
            )
        return found

    def _made(self, kind: type[_AnyState], found: StateDeclaration) -> Any:
        made = kind(found, kind.in_spark(self._handle, found), self._scope)
        self.opened.append(made)
        return made


# -- states of the key that is being processed


class _AnyState:
    """The common base of the three kinds: Spark's state, and the changes not yet written to it."""

    def __init__(self, declared: StateDeclaration, spark: Any, scope: KeyScope) -> None:
        self._name = declared.name
        self._spark = spark
        self._scope = scope
        self._codec = declared.columns.codec(f"state {declared.name!r}")
        self.forget()

    @staticmethod
    def in_spark(handle: StatefulProcessorHandle, declared: StateDeclaration) -> Any:
        """Return Spark's state of this declaration."""
        raise NotImplementedError

    def forget(self) -> None:
        """Begin with another key."""
        raise NotImplementedError

    def write(self) -> None:
        """Hand Spark what has changed of this key."""
        raise NotImplementedError


class KeyedValue(_AnyState):
    """One value of the key; None until it is set."""

    @staticmethod
    def in_spark(handle: StatefulProcessorHandle, declared: StateDeclaration) -> Any:
        """Return Spark's state of this declaration."""
        schema: Any = declared.columns.schema
        return handle.getValueState(declared.name, schema, declared.ttl_ms)

    def forget(self) -> None:
        """Begin with another key."""
        self._held: Any = _NOT_READ
        self._changed = False

    def get(self) -> Any:
        """Return the value, a Row if it has columns; None if there is none."""
        self._scope.check(self._name)
        if self._held is _NOT_READ:
            self._held = self._spark.get()
        return None if self._held is None else self._codec.decode(self._held)

    def update(self, value: Any) -> None:
        """Set the value."""
        self._scope.check(self._name)
        self._held, self._changed = self._codec.encode(value), True

    def clear(self) -> None:
        """Remove the value."""
        self._scope.check(self._name)
        self._held, self._changed = None, True

    def write(self) -> None:
        """Hand Spark what has changed of this key."""
        if self._changed and self._held is None:
            self._spark.clear()
        elif self._changed:
            self._spark.update(self._held)
        self.forget()


class KeyedList(_AnyState):
    """A list of the key; empty until something is added."""

    @staticmethod
    def in_spark(handle: StatefulProcessorHandle, declared: StateDeclaration) -> Any:
        """Return Spark's state of this declaration."""
        schema: Any = declared.columns.schema
        return handle.getListState(declared.name, schema, declared.ttl_ms)

    def forget(self) -> None:
        """Begin with another key."""
        self._stored: Any = _NOT_READ
        self._added: list[tuple[Any, ...]] = []
        self._replaced = False

    def get(self) -> list[Any]:
        """Return all values, in the order in which they were added."""
        self._scope.check(self._name)
        if self._stored is _NOT_READ:
            self._stored = list(self._spark.get())
        return [self._codec.decode(one) for one in (*self._stored, *self._added)]

    def add(self, value: Any) -> None:
        """Append a value."""
        self._scope.check(self._name)
        self._added.append(self._codec.encode(value))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several values."""
        for value in values:
            self.add(value)

    def update(self, values: Iterable[Any]) -> None:
        """Set the whole list."""
        new = [self._codec.encode(value) for value in values]
        self.clear()
        self._added = new

    def clear(self) -> None:
        """Remove all values."""
        self._scope.check(self._name)
        self._stored, self._added, self._replaced = [], [], True

    def write(self) -> None:
        """Hand Spark what has changed of this key."""
        if self._replaced and self._added:
            self._spark.put(self._added)
        elif self._replaced:
            self._spark.clear()
        elif self._added:
            self._spark.appendList(self._added)
        self.forget()


class KeyedMap(_AnyState):
    """A map of the key; only the entries that are used are read."""

    def __init__(self, declared: StateDeclaration, spark: Any, scope: KeyScope) -> None:
        """Open it like any state, with an additional codec for the map's keys."""
        assert declared.key is not None
        self._keys = declared.key.codec(f"a key of state {declared.name!r}")
        super().__init__(declared, spark, scope)

    @staticmethod
    def in_spark(handle: StatefulProcessorHandle, declared: StateDeclaration) -> Any:
        """Return Spark's state of this declaration."""
        assert declared.key is not None
        key: Any = declared.key.schema
        value: Any = declared.columns.schema
        return handle.getMapState(declared.name, key, value, declared.ttl_ms)

    def forget(self) -> None:
        """Begin with another key."""
        self._held: dict[tuple[Any, ...], Any] = {}  # None for an absent entry
        self._changed: dict[tuple[Any, ...], None] = {}
        self._whole = False
        self._emptied = False

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key of the map."""
        held = self._read(self._key(key))
        return default if held is None else self._codec.decode(held)

    def __contains__(self, key: Any) -> bool:
        """Whether the map has this key."""
        return self._read(self._key(key)) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._set(self._key(key), self._codec.encode(value))

    def remove(self, key: Any) -> None:
        """Remove a key, if it is there."""
        self._set(self._key(key), None)

    def clear(self) -> None:
        """Remove all keys."""
        self._scope.check(self._name)
        self.forget()
        self._whole = self._emptied = True

    def items(self) -> list[tuple[Any, Any]]:
        """Return all keys and values, in the order of the keys; this reads the whole map."""
        self._read_all()
        keys = sorted((key for key, held in self._held.items() if held is not None), key=in_order)
        return [(self._keys.decode(key), self._codec.decode(self._held[key])) for key in keys]

    def keys(self) -> list[Any]:
        """Return all keys, in order."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """Return all values, in the order of their keys."""
        return [value for _, value in self.items()]

    def _read(self, key: tuple[Any, ...]) -> Any:
        self._scope.check(self._name)
        if key not in self._held:
            self._held[key] = None if self._whole else self._spark.getValue(key)
        return self._held[key]

    def _read_all(self) -> None:
        self._scope.check(self._name)
        if not self._whole:
            for key, held in self._stored():
                self._held.setdefault(key, held)
            self._whole = True

    def _stored(self) -> Iterator[tuple[tuple[Any, ...], Any]]:
        for key, held in self._spark.iterator():
            # Encoded again: Spark's own copy may have other types, such as a bytearray for bytes.
            again = self._keys.decode(key)
            yield self._key(again), held

    def _key(self, given: Any) -> tuple[Any, ...]:
        """Return a key in the form that Spark takes, with one 0.0 and one NaN.

        Spark compares bytes and Python does not: else it would depend on whether the key is of
        this epoch or an earlier one which keys are the same.
        """
        return tuple(_one_float(value) for value in self._keys.encode(given))

    def _set(self, key: tuple[Any, ...], held: Any) -> None:
        self._scope.check(self._name)
        self._held[key] = held
        self._changed[key] = None

    def write(self) -> None:
        """Hand Spark what has changed of this key."""
        if self._emptied:
            self._spark.clear()
        for key in self._changed:
            if self._held[key] is not None:
                self._spark.updateValue(key, self._held[key])
            elif not self._emptied:
                self._spark.removeKey(key)
        self.forget()


def _one_float(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return math.nan if math.isnan(value) else value + 0.0


def in_order(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a sort key for plain values of one type or null: nulls first."""
    return tuple((value is not None, value) for value in values)
