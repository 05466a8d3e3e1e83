"""What ``SqliteSink`` asks before the first row: can the file be written, does the table fit?

Everything that would otherwise fail at commit, when the epoch is decided and must not fail any
more, is looked for here. Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.sink import BadSink
from beadline.sinks.shared.sql.dialect import quoted
from beadline.sinks.shared.sql.plan import check_required, check_unique, match
from beadline.sinks.shared.sql.settings import NOTHING, TableSettings
from beadline.sinks.sqlite.columns import Column, folded

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Table:
    """What the database says of a table: columns by folded name, and what is unique in it."""

    columns: dict[str, Column]
    unique: frozenset[frozenset[str]]
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


def check_file(path: Path, busy_timeout_s: float, table: str) -> Table | None:
    """Raise unless the database can be written; return the table, if there is one."""
    if path.is_dir():
        raise BadSink(f"{path} is a folder, not an SQLite database. {NOTHING}")
    try:
        # Database, journal and staged parts are all made in this folder.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BadSink(
            f"folder {path.parent} cannot be written ({error.strerror}). Make it, or let this "
            f"user write there. {NOTHING}"
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
        raise BadSink(f"{path} cannot be used by SQLite: {error}. {NOTHING}") from error


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
    strict = (
        sqlite3.sqlite_version_info >= (3, 37)
        and database.execute(
            "SELECT 1 FROM pragma_table_list WHERE strict AND lower(name) = lower(?)", (name,)
        ).fetchone()
    )
    columns = {
        folded(row[0]): Column(row[0], row[1], bool(row[2]), row[3] > 0, bool(strict))
        for row in found
    }
    unique = {frozenset(folded(row[0]) for row in found if row[4])}
    indexes = database.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (name,)
    ).fetchall()
    for (index,) in indexes:
        members = database.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        unique.add(frozenset(folded(member or "") for (member,) in members))
    return Table(columns, frozenset(unique), kind == ("view",))


def check_table(table: Table, settings: TableSettings, schema: pa.Schema) -> None:
    """Raise with the first thing for which the table does not fit the rows."""
    if table.view:
        raise settings.bad("it is a view, not a table.")
    for field in schema:
        match(settings, field, table.columns)
    check_required(settings, schema.names, table.columns)
    name = settings.table
    check_unique(settings, quoted(name), table.unique, quoted(f"{name}_key"))


def never_null_columns(path: Path, busy_timeout_s: float, table: str) -> set[str]:
    """The columns that an existing table declares NOT NULL: after the decision it is too late."""
    if not path.exists():
        return set()
    with closing(connect(str(path), busy_timeout_s)) as database:
        found = database.execute(
            'SELECT name FROM pragma_table_info(?) WHERE "notnull"', (table,)
        ).fetchall()
    return {folded(name) for (name,) in found}
