"""What has changed between the state that a job would keep and the state that its checkpoint holds.

Spark asks the same in the first epoch, after the claim, and answers with a dump of both schemas. It
does not ask for names: a variable with two columns of one type, written the other way round, would
be read wrongly, without an error. In ``transformWithState`` names are the author's, and so are
those of Beadline's own operators, whose columns are never renamed without a reason: there they
count. So does the name of a window that Spark computes, which says how `windowed` divided the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from beadline.state.metadata import DEFAULT_STORE, StateOperator, Variable
from beadline.state.reading import BUCKET_KEY

# How the name of Spark's own windows begins in the key of an aggregation; size and time follow.
_WINDOWS = "beadline_window_"
# Variables that Beadline's operators have had since a later version: they begin empty.
_ADDED = {"dropped"}
_KINDS = {
    "stateStoreSave": "an aggregation",
    "sessionWindowStateStoreSaveExec": "session windows",
    "symmetricHashJoin": "a join of two streams",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "globalLimit": "a limit",
    "flatMapGroupsWithState": "flatMapGroupsWithState",
    "applyInPandasWithState": "applyInPandasWithState",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPandasExec": "transformWithStateInPandas",
    "transformWithStateInPySparkExec": "transformWithState",
}


def kind_of(name: str) -> str:
    """Return what an operator is, in the words of the query's author."""
    return _KINDS.get(name, name)


def changes(
    held: Sequence[StateOperator], new: Sequence[StateOperator], *, evolves: bool = False
) -> list[str]:
    """Return what the checkpoint's state and the job's differ in, each in a clause.

    ``evolves`` is for Avro, with which columns of a value may come and go: Spark judges those.
    """
    if not held:
        return []
    kinds = [(one.number, one.name) for one in held], [(one.number, one.name) for one in new]
    if kinds[0] != kinds[1]:
        return [f"it has {_listed(new)}, and the checkpoint's state is of {_listed(held)}"]
    return [
        clause
        for old, now in zip(held, new, strict=True)
        for clause in _changes_of(old, now, evolves)
    ]


def _listed(operators: Sequence[StateOperator]) -> str:
    if not operators:
        return "no stateful operator"
    return ", ".join(f"{kind_of(one.name)} (operator {one.number})" for one in operators)


def _changes_of(held: StateOperator, new: StateOperator, evolves: bool) -> Iterator[str]:
    where = f"operator {new.number}, {kind_of(new.name)}"
    if held.time_mode and new.time_mode and held.time_mode != new.time_mode:
        yield f"{where}: its time mode was {held.time_mode} and is {new.time_mode}"
    there = {one.name: one for one in held.variables}
    for now in new.variables:
        old = there.get(now.name)
        if old is None or now.internal:
            continue
        what = where if now.name == DEFAULT_STORE else f"{where}, variable {now.name!r}"
        if old.kind != now.kind:
            yield f"{what}: it was a {old.kind} and is a {now.kind}"
            continue
        named = new.transforms
        yield from _columns(f"{what}: its key", old.key, now.key, named)
        if not evolves:
            yield from _columns(f"{what}: its value", old.value, now.value, named)
    if _is_ours(held) and (gone := (_names(held) ^ _names(new)) - _ADDED):
        # Each of Beadline's variables is there for a setting, and holds what it began with.
        yield f"{where}: {', '.join(sorted(gone))} is kept now and was not, or the other way round"


def _names(operator: StateOperator) -> set[str]:
    return {one.name for one in operator.variables if not one.internal}


def _is_ours(operator: StateOperator) -> bool:
    return any(BUCKET_KEY in _flat_names(one.key) for one in operator.variables)


def _flat_names(schema: StructType) -> Iterator[str]:
    for field in schema:
        yield field.name
        if isinstance(field.dataType, StructType):
            yield from _flat_names(field.dataType)


def _columns(what: str, held: StructType, new: StructType, named: bool) -> Iterator[str]:
    """Whether nullable is left to Spark: it depends on the source, and here there is none yet."""
    if not _same(held, new, named):
        yield f"{what} was {_shown(held)} and is {_shown(new)}"


def _shown(schema: StructType) -> str:
    return "(" + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema) + ")"


def _same(held: DataType, new: DataType, named: bool) -> bool:
    if isinstance(held, StructType) and isinstance(new, StructType):
        return len(held) == len(new) and all(
            _named_alike(one.name, other.name, named) and _same(one.dataType, other.dataType, named)
            for one, other in zip(held, new, strict=True)
        )
    if isinstance(held, ArrayType) and isinstance(new, ArrayType):
        return _same(held.elementType, new.elementType, named)
    if isinstance(held, MapType) and isinstance(new, MapType):
        return _same(held.keyType, new.keyType, named) and _same(
            held.valueType, new.valueType, named
        )
    return held == new


def _named_alike(held: str, new: str, named: bool) -> bool:
    """Whether names agree where they count; older checkpoints do not name Spark's own windows."""
    both_windows = held.startswith(_WINDOWS) and new.startswith(_WINDOWS)
    return held == new or not (named or both_windows)


def describe(variable: Variable) -> str:
    """Return the columns of a variable, as a person reads them."""
    key = variable.key if variable.user_key is None else variable.user_key
    return f"{_shown(key)} → {_shown(variable.value)}"
