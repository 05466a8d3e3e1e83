"""Rows that a table would refuse or bend, found while nothing is decided, whole columns at a time.

At commit the epoch is decided, and a row that the table will not take would hold it up for good.
The staging table has the target's own column types, so what is not thought of here is still found
at prepare, by the server (``staging``); only more slowly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from beadline.sink import Part
from beadline.sinks.mysql.columns import (
    BINARY_BYTES,
    INTEGER_BITS,
    TEXT_BYTES,
    Column,
    family_of,
    folded,
)
from beadline.sinks.mysql.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # the years 1 to 9999
_DAY_S = 86_400
_FIRST_S, _LAST_S = 1, 2**31 - 1  # of a TIMESTAMP
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTF8 = ("utf8mb4", "utf8mb3", "utf8")
_WORDS = re.compile(r"'((?:[^']|'')*)'")
_BEYOND_UTF8MB3 = "[\U00010000-\U0010ffff]"


def without_refused(batch: pa.RecordBatch, plan: Plan, part: Part) -> pa.RecordBatch:
    """Refuse what the table cannot take, each row once, and return the others.

    Of a row that is marked as deleted only the key counts; its other values are blanked.
    """
    import pyarrow.compute as pc

    left = None
    for found, reason in _findings(batch, plan):
        bad = pc.fill_null(found, False)
        if left is not None:
            bad = pc.and_(bad, left)
        if pc.any(bad, min_count=0).as_py():
            part.refuse(batch.filter(bad), reason)
            good = pc.invert(bad)
            left = good if left is None else pc.and_(left, good)
    taken = batch if left is None else batch.filter(left)
    return _without_values_of_deleted(taken, plan)


def _findings(batch: pa.RecordBatch, plan: Plan) -> Iterator[tuple[Any, str]]:
    import pyarrow.compute as pc

    live = None if plan.deleted is None else pc.invert(batch.column(plan.deleted))
    for column, name in zip(plan.columns, batch.schema.names, strict=True):
        array = batch.column(name)
        found: Findings = []
        if folded(name) in plan.never_null and array.null_count:
            found.append((pc.is_null(array), "is null, and is part of the key or NOT NULL"))
        find = _FINDERS.get(family_of(array.type) or "")
        found += find(array, column) if find else []
        for bad, why in found:
            counts = live is None or folded(name) in plan.always
            yield bad if counts else pc.and_kleene(bad, live), f"column {name!r} {why}"


def _without_values_of_deleted(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    if plan.deleted is None:
        return batch
    deleted = batch.column(plan.deleted)
    columns = [
        array
        if folded(name) in plan.always
        else pc.if_else(deleted, pa.scalar(None, array.type), array)
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


Findings = list[tuple[Any, str]]


def _integers(array: Any, column: Column) -> Findings:
    bits, unsigned = array.type.bit_width, str(array.type).startswith("u")
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if column.type in INTEGER_BITS:
        wide = INTEGER_BITS[column.type]
        least, most = -(2 ** (wide - 1)), 2 ** (wide - 1) - 1
        if column.unsigned:
            least, most = 0, 2**wide - 1
    elif column.type == "decimal":
        most = 10 ** ((column.precision or 0) - (column.scale or 0)) - 1
        least = 0 if column.unsigned else -most
    else:
        least, most = (0, high) if column.unsigned else (low, high)
    return _outside(array, (low, high), (least, most), f"is out of the range of {column.declared}")


def _outside(array: Any, has: tuple[int, int], may: tuple[int, int], why: str) -> Findings:
    """Compare only with bounds that a value can pass."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Findings = []
    if may[0] > has[0]:
        found.append((pc.less(array, pa.scalar(may[0], array.type)), why))
    if may[1] < has[1]:
        found.append((pc.greater(array, pa.scalar(may[1], array.type)), why))
    return found


def _floats(array: Any, column: Column) -> Findings:
    import pyarrow.compute as pc

    found: Findings = [(pc.invert(pc.is_finite(array)), "is NaN or infinite, which MySQL has not")]
    if column.unsigned:
        found.append((pc.less(array, 0), f"is out of the range of {column.declared}"))
    return found


def _decimals(array: Any, column: Column) -> Findings:
    from decimal import Decimal

    import pyarrow as pa
    import pyarrow.compute as pc

    why = f"is out of the range of {column.declared}"
    digits = (column.precision or 0) - (column.scale or 0)
    found: Findings = []
    if array.type.precision - array.type.scale > digits:
        bound = pa.scalar(Decimal(10) ** digits, array.type)
        found.append((pc.greater_equal(pc.abs(array), bound), why))
    if column.unsigned:
        found.append((pc.less(array, pa.scalar(Decimal(0), array.type)), why))
    return found


def _texts(array: Any, column: Column) -> Findings:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: Findings = []
    if column.type in ("char", "varchar"):
        why = f"is longer than {column.characters} characters"
        found.append((pc.greater(pc.utf8_length(array), column.characters or 0), why))
    elif column.type in TEXT_BYTES and (column.character_set or _UTF8[0]) in _UTF8:
        most = TEXT_BYTES[column.type]
        found.append((pc.greater(pc.binary_length(array), most), f"is longer than {most} bytes"))
    if column.type == "enum":
        # The server would take '1' for the first of them.
        words = [word.replace("''", "'") for word in _WORDS.findall(column.declared)]
        other = pc.invert(pc.is_in(array, value_set=pa.array(words, array.type), skip_nulls=True))
        found.append((pc.and_(other, pc.is_valid(array)), f"is not one of {column.declared}"))
    if column.type == "char":
        found.append((pc.ends_with(array, " "), "ends with a space, which CHAR forgets"))
    if column.character_set in _UTF8[1:]:
        bad = pc.match_substring_regex(array, pattern=_BEYOND_UTF8MB3)
        found.append((bad, f"has characters beyond {column.character_set}; declare it utf8mb4"))
    return found


def _binaries(array: Any, column: Column) -> Findings:
    import pyarrow.compute as pc

    lengths = pc.binary_length(array)
    if column.type == "binary":
        why = f"is not {column.bytes} bytes long, to which BINARY would fill it"
        return [(pc.not_equal(lengths, column.bytes or 0), why)]
    most = BINARY_BYTES.get(column.type, column.bytes or 0)
    return [(pc.greater(lengths, most), f"is longer than {most} bytes")]


def _dates(array: Any, column: Column) -> Findings:
    import pyarrow as pa
    import pyarrow.compute as pc

    days = array.cast(pa.date32()).cast(pa.int32())
    bad = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
    return [(bad, "is outside the years 1 to 9999")]


def _timestamps(array: Any, column: Column) -> Findings:
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers, per_second = array.cast(pa.int64()), _PER_SECOND[array.type.unit]
    first_s, last_s, why = _FIRST_DAY * _DAY_S, (_LAST_DAY + 1) * _DAY_S - 1, "the years 1 to 9999"
    if column.type == "timestamp":
        first_s, last_s, why = _FIRST_S, _LAST_S, "1970 to 2038, which is what TIMESTAMP can say"
    found: Findings = []
    if array.type.unit != "ns" or column.type == "timestamp":  # nanoseconds do not reach that far
        early = pc.less(numbers, first_s * per_second)
        late = pc.greater_equal(numbers, (last_s + 1) * per_second)
        found.append((pc.or_(early, late), f"is outside {why}"))
    step = per_second // 10**column.fraction_digits
    if step > 1:
        finer = pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)
        found.append((finer, f"is finer than {column.declared}, which would round it"))
    return found


_FINDERS: dict[str, Callable[[Any, Column], Findings]] = {
    "integer": _integers,
    "float": _floats,
    "decimal": _decimals,
    "text": _texts,
    "binary": _binaries,
    "date": _dates,
    "timestamp": _timestamps,
}
