"""What ``SqliteSink`` asks before the first row: can the file be written, does the table fit?

Everything that would otherwise fail at commit, when the epoch is decided and must not fail any
more, is looked for here. Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.sink import NOT_SHOWN, NOTHING_WRITTEN, BadSink
from beadline.sinks.shared.sql.dialect import quoted
from beadline.sinks.shared.sql.plan import check_required, check_unique, match
from beadline.sinks.shared.sql.settings import TableSettings
from beadline.sinks.sqlite.columns import SqliteColumn, folded

if TYPE_CHECKING:
    import pyarrow as pa

# Where a statement's words are only text: strings, quoted names, comments.
_TEXT = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
# Nulls in a NOT NULL column are refused at prepare, whatever its clause says.
_NOT_NULL = re.compile(r"\bNOT\s+NULL\s+ON\s+CONFLICT\s+\w+", re.IGNORECASE)
_DROPS = re.compile(r"\bON\s+CONFLICT\s+(IGNORE|REPLACE)\b", re.IGNORECASE)
# Once written, the row stays: only what runs before it is written counts.
_BEFORE = re.compile(r"\bTRIGGER\b.*?\b(AFTER|DELETE|INSERT|UPDATE)\b", re.IGNORECASE | re.DOTALL)
_IGNORES = re.compile(r"\bRAISE\s*\(\s*IGNORE\s*\)", re.IGNORECASE)
# What SQLite itself says of a row that it does not take: names, and no values.
_OWN_WORDS = re.compile(
    r"[A-Z ]+ constraint failed(: .+)?|cannot store \w+ value in \w+ column .+|datatype mismatch",
    re.DOTALL,
)
_RAISED = 1811  # SQLITE_CONSTRAINT_TRIGGER


@dataclass(frozen=True)
class SqliteTable:
    """What the database says of a table: columns by folded name, and what is unique in it.

    ``clause`` is a word of its declaration with which it drops rows silently; ``triggers`` are
    those that skip a row silently, each with its event: INSERT, UPDATE or DELETE.
    """

    columns: dict[str, SqliteColumn]
    unique: frozenset[frozenset[str]]
    view: bool
    clause: str = ""
    triggers: tuple[tuple[str, str], ...] = ()


def connect(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the database so that a COMMIT that returns survives a power cut.

    EXTRA, not FULL: in the usual journal mode FULL leaves the journal's removal, which is the
    commit, in the cache, and the staged parts would be deleted before it is on the disk.
    """
    database = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    database.execute("PRAGMA synchronous = EXTRA")
    return database


def is_busy(error: sqlite3.Error) -> bool:
    """Whether an error says only that another process is writing; Python 3.10 has no codes."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def is_blocked(error: sqlite3.Error) -> bool:
    """Whether it says nothing about rows: the file may not be written, or the disk is full."""
    words = ("readonly", "unable to open", "disk is full", "access permission denied")
    return isinstance(error, sqlite3.OperationalError) and any(w in str(error) for w in words)


def said(error: sqlite3.IntegrityError) -> str:
    """Return what SQLite says of a row; what a trigger says may hold the row's values.

    >>> said(sqlite3.IntegrityError("UNIQUE constraint failed: t.id"))
    'UNIQUE constraint failed: t.id'
    >>> said(sqlite3.IntegrityError("no room for 4111"))
    'a trigger refuses it, in words that may hold values of rows (not shown)'
    """
    code = getattr(error, "sqlite_errorcode", None)  # as of Python 3.11
    if code != _RAISED and _OWN_WORDS.fullmatch(str(error)):
        return str(error)
    return f"a trigger refuses it, in words that may hold values of rows {NOT_SHOWN}"


def check_file(path: Path, busy_timeout_s: float, table: str) -> SqliteTable | None:
    """Raise unless the database can be written; return the table, if there is one."""
    if path.is_dir():
        raise BadSink(f"{path} is a folder, not an SQLite database. {NOTHING_WRITTEN}")
    try:
        # Database, journal and staged parts are all made in this folder.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise BadSink(
            f"folder {path.parent} cannot be written ({error.strerror}). Make it, or let this "
            f"user write there. {NOTHING_WRITTEN}"
        ) from error
    if not path.exists():
        return None
    try:
        with closing(connect(str(path), busy_timeout_s)) as database:
            found = read_table(database, table)
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error):  # busy is not an error: a commit will wait
                    raise
            return found
    except sqlite3.DatabaseError as error:
        raise BadSink(f"{path} cannot be used by SQLite: {error}. {NOTHING_WRITTEN}") from error


def read_table(database: sqlite3.Connection, name: str) -> SqliteTable | None:
    """Return what is there under this name; None if nothing is."""
    kind = database.execute(
        "SELECT type, sql FROM sqlite_master"
        " WHERE lower(name) = lower(?) AND type IN ('table', 'view')",
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
        folded(row[0]): SqliteColumn(row[0], row[1], bool(row[2]), row[3] > 0, bool(strict))
        for row in found
    }
    unique = {frozenset(folded(row[0]) for row in found if row[4])}
    indexes = database.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (name,)
    ).fetchall()
    for (index,) in indexes:
        members = database.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        unique.add(frozenset(folded(member or "") for (member,) in members))
    clause = _DROPS.search(_NOT_NULL.sub("", _words(kind[1])))
    return SqliteTable(
        columns,
        frozenset(unique),
        kind[0] == "view",
        clause[1].upper() if clause else "",
        tuple(_dropping_triggers(database, name)),
    )


def _words(sql: str | None) -> str:
    return _TEXT.sub(" ", sql or "")


def _dropping_triggers(database: sqlite3.Connection, table: str) -> Iterator[tuple[str, str]]:
    found = database.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)",
        (table,),
    )
    for name, sql in found:
        words = _words(sql)
        event = _BEFORE.search(words)
        if event and event[1].upper() != "AFTER" and _IGNORES.search(words):
            yield name, event[1].upper()


def check_table(table: SqliteTable, settings: TableSettings, schema: pa.Schema) -> None:
    """Raise with the first thing for which the table does not fit the rows."""
    if table.view:
        raise settings.bad("it is a view, not a table.")
    _check_keeps_rows(table, settings)
    stored = [field for field in schema if field.name != settings.deleted]
    for field in stored:
        match(settings, field, table.columns)
    check_required(settings, (field.name for field in stored), table.columns)
    name = settings.table
    check_unique(settings, quoted(name), table.unique, quoted(f"{name}_key"))


def _check_keeps_rows(table: SqliteTable, settings: TableSettings) -> None:
    """Raise where the table itself says that it drops rows, which would be lost silently."""
    for name, event in table.triggers:
        if event == "DELETE" and settings.deleted is None:
            continue
        raise settings.bad(
            f"its trigger {name!r} skips rows with RAISE(IGNORE) before {event}, and every row of "
            "an epoch has to take effect. Filter them in rows=, or let the trigger "
            "RAISE(ABORT, ...)."
        )
    # Of its own key, the clause does not count in upsert and add: the row there is updated.
    key = frozenset(map(folded, settings.key))
    if table.clause and any(unique != key for unique in table.unique if unique):
        raise settings.bad(
            f"it is declared with ON CONFLICT {table.clause}, which drops rows. Leave the clause "
            "out; for one row of each key, the last, give the sink mode='upsert' and key=."
        )


def never_null_columns(path: Path, busy_timeout_s: float, table: str) -> set[str]:
    """The columns of an existing table that take no null: after the decision it is too late.

    Those that are NOT NULL, and INTEGER PRIMARY KEY, which is the rowid by another name: SQLite
    would invent a number for a null. It is the only kind of primary key without an index.
    """
    if not path.exists():
        return set()
    with closing(connect(str(path), busy_timeout_s)) as database:
        found = database.execute(
            'SELECT name FROM pragma_table_info(?) WHERE "notnull" OR pk AND NOT EXISTS'
            " (SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk')",
            (table, table),
        ).fetchall()
    return {folded(name) for (name,) in found}
