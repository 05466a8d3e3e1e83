"""The SQL of the modes that databases have in common: which of an epoch's staged rows count.

Where a key comes twice in an epoch, ``order_by`` says which row counts, or it is an error; it is
never left to chance. Within a part, that is found before anything is decided; across parts, only at
commit, when all of them are there. The server compares, as the key's collation does: 'a' and 'A'
may be the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beadline.sinks.shared.sql.dialect import Dialect
from beadline.sinks.shared.sql.settings import TableSettings

PLACE = "_beadline_place"  # of a row among those of its key


def union(dialect: Dialect[Any], places: Sequence[str], columns: Sequence[str]) -> str:
    """Return a query for these columns of all rows of some tables."""
    names = dialect.listed(columns)
    return " UNION ALL ".join(f"SELECT {names} FROM {place}" for place in places)


def duplicates(settings: TableSettings, places: Sequence[str]) -> str:
    """Return a query that finds a key of which two rows may both count in these staging tables."""
    keys = settings.dialect.listed(settings.key)
    if settings.order_by is None:
        rows = f"({union(settings.dialect, places, settings.key)})"
    else:
        rows = f"({largest(settings, 'RANK', places, settings.key)})"
    return f"SELECT 1 FROM {rows} AS counted GROUP BY {keys} HAVING COUNT(*) > 1 LIMIT 1"


def largest(
    settings: TableSettings, place: str, places: Sequence[str], columns: Sequence[str]
) -> str:
    """Return a query for the row of each key with the largest order.

    ``RANK`` as ``place`` leaves all that are equal in it, ``ROW_NUMBER`` one of them.
    """
    dialect, order = settings.dialect, settings.order_by
    assert order is not None
    staged = {dialect.fold(name): name for name in (*columns, *settings.key, order)}
    names, keys = dialect.listed(columns), dialect.listed(settings.key)
    window = f"PARTITION BY {keys} ORDER BY {dialect.quoted(order)} {dialect.descending}"
    return (
        f"SELECT {names} FROM (SELECT {names}, {place}() OVER ({window}) AS {PLACE} FROM "
        f"({union(dialect, places, list(staged.values()))}) AS staged) AS ranked WHERE {PLACE} = 1"
    )


def summed(column: str, *, not_null: bool) -> str:
    """Return the sum of a quoted column; nulls add nothing, also where the table takes none."""
    return f"COALESCE(SUM({column}), 0)" if not_null else f"SUM({column})"


def added(there: str, new: str) -> str:
    """Return what is there and what is new, added up."""
    # A sum with a null is null, which would wipe out the total: then the other value counts.
    return f"COALESCE({there} + {new}, {there}, {new})"


def key_twice(settings: TableSettings) -> str:
    """Say that a key comes twice, but not which: values of rows do not belong in a log."""
    same = "" if settings.order_by is None else f" with the same {settings.order_by!r}"
    return f"a key ({', '.join(settings.key)}) twice{same} in one epoch"


def key_twice_advice(settings: TableSettings) -> str:
    """Say what decides between rows of one key, also of rows that are staged already."""
    if settings.order_by is None:
        return "Say which row counts with order_by=, the largest wins."
    return (
        f"Order by a column in which no two rows of a key are the same, not {settings.order_by!r}."
    )
