"""What ``SqliteSink`` asks before the first row: can the file be written, does the table fit?

Everything that would otherwise fail at commit, when the epoch is decided and must not fail any
more, is looked for here. Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from beadline.errors import BadSink
from beadline.sinks.sqlite.columns import Kind, folded, quoted

_NOTHING = "Nothing was written."


@dataclass(frozen=True)
class Column:
    """A column that an existing table has."""

    name: str
    declared: str
    required: bool
    generated: bool


@dataclass(frozen=True)
class Table:
    """What the database says of a table: columns by folded name, and what is unique in it."""

    columns: dict[str, Column]
    unique: frozenset[frozenset[str]]
    strict: bool
    view: bool


def connect(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the database so that a COMMIT that returns survives a power cut.

    EXTRA, not FULL: in the usual journal mode FULL leaves the journal's removal, which is the
    commit, in the cache, and the staged parts would be deleted before it is on the disk.
    """
    database = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    database.execute("PRAGMA synchronous = EXTRA")
    return database


def is_busy(error: sqlite3.Error) -> bool:
    """Whether an error says only that somebody else is writing; Python 3.10 has no codes."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def check_key(mode: str, key: Sequence[str], kinds: dict[str, Kind], where: str) -> None:
    """Raise unless the key is in the rows, and what is added can be added."""
    for name in key:
        if name not in kinds:
            raise BadSink(
                f"{where}: key column {name!r} is not in the rows, which have "
                f"{', '.join(kinds)}. {_NOTHING}"
            )
        if not kinds[name].keys:
            raise BadSink(
                f"{where}: column {name!r} holds {kinds[name].name}, which cannot be a key: equal "
                f"values may be written differently. {_NOTHING}"
            )
    values = {name: kind for name, kind in kinds.items() if name not in key}
    if mode == "add" and not values:
        raise BadSink(f"{where}: beside the key no column is left to add. {_NOTHING}")
    for name, kind in values.items():
        if mode == "add" and not kind.adds:
            raise BadSink(
                f"{where}: column {name!r} holds {kind.name}, which cannot be added. Make it part "
                f"of the key, or leave it out in rows=. {_NOTHING}"
            )


def check_file(path: Path, busy_timeout_s: float, table: str) -> Table | None:
    """Raise unless the database can be written; return the table, if there is one."""
    if path.is_dir():
        raise BadSink(f"{path} is a folder, not an SQLite database. {_NOTHING}")
    try:
        # Database, journal and staged parts are all made in this folder.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BadSink(
            f"folder {path.parent} cannot be written ({error.strerror}). Make it, or let this "
            f"user write there. {_NOTHING}"
        ) from error
    if not path.exists():
        return None
    try:
        with closing(connect(str(path), busy_timeout_s)) as database:
            found = read_table(database, table)
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):  # busy is no fault: a commit will wait
                    raise
            return found
    except sqlite3.DatabaseError as error:
        raise BadSink(f"{path} cannot be used by SQLite: {error}. {_NOTHING}") from error


def read_table(database: sqlite3.Connection, name: str) -> Table | None:
    """Return what is there under this name; None if nothing is."""
    kind = database.execute(
        "SELECT type FROM sqlite_master WHERE lower(name) = lower(?) AND type IN ('table', 'view')",
        (name,),
    ).fetchone()
    if kind is None:
        return None
    found = database.execute(
        'SELECT name, type, "notnull" AND dflt_value IS NULL, hidden, pk'
        " FROM pragma_table_xinfo(?)",
        (name,),
    ).fetchall()
    columns = {folded(row[0]): Column(row[0], row[1], bool(row[2]), row[3] > 0) for row in found}
    unique = {frozenset(folded(row[0]) for row in found if row[4])}
    indexes = database.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (name,)
    ).fetchall()
    for (index,) in indexes:
        members = database.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        unique.add(frozenset(folded(member or "") for (member,) in members))
    strict = (
        sqlite3.sqlite_version_info >= (3, 37)
        and database.execute(
            "SELECT 1 FROM pragma_table_list WHERE strict AND lower(name) = lower(?)", (name,)
        ).fetchone()
    )
    return Table(columns, frozenset(unique), bool(strict), kind == ("view",))


def check_table(table: Table, kinds: dict[str, Kind], where: str) -> None:
    """Raise with the first column that does not fit."""
    if table.view:
        raise BadSink(f"{where} is a view, not a table. {_NOTHING}")
    for name, kind in kinds.items():
        column = table.columns.get(folded(name))
        if column is None:
            raise BadSink(
                f"{where}: the table has no column {name!r}. Add it, or leave it out in rows=. "
                "Nothing was written."
            )
        if column.generated:
            raise BadSink(f"{where}: column {name!r} is generated. Nothing was written.")
        if not kind.fits(column.declared, table.strict):
            raise BadSink(
                f"{where}: column {name!r} is declared {column.declared or 'without a type'}, but "
                f"the rows hold {kind.name}, which it would change or refuse. Declare it "
                f"{kind.declared}, or cast it in rows=. Nothing was written."
            )
    given = {folded(name) for name in kinds}
    for folded_name, column in table.columns.items():
        if column.required and not column.generated and folded_name not in given:
            raise BadSink(
                f"{where}: the table wants a value in column {column.name!r}, and the rows have "
                "none. Give it a default, or add it in rows=. Nothing was written."
            )


def check_unique(table: Table, name: str, key: Sequence[str], where: str) -> None:
    """Raise unless the database itself keeps the key unique."""
    if key and frozenset(map(folded, key)) not in table.unique:
        columns = ", ".join(map(quoted, key))
        raise BadSink(
            f"{where}: nothing makes the key unique. Run CREATE UNIQUE INDEX "
            f"{quoted(f'{name}_key')} ON {quoted(name)} ({columns}). {_NOTHING}"
        )


def never_null_columns(path: Path, busy_timeout_s: float, table: str) -> set[str]:
    """The columns that an existing table declares NOT NULL: after the decision it is too late."""
    if not path.exists():
        return set()
    with closing(connect(str(path), busy_timeout_s)) as database:
        found = database.execute(
            'SELECT name FROM pragma_table_info(?) WHERE "notnull"', (table,)
        ).fetchall()
    return {folded(name) for (name,) in found}
