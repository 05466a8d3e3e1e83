"""PostgreSQL, MySQL and MariaDB: an empty table next to the real one, with its definition.

Columns whose values the server generates (identity columns, the time of the insert) are not
compared: they do not come from the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from beadline.errors import UsageError
from beadline.shared.secrets import redacted
from beadline.sink import LEDGER
from beadline.sinks.mysql.columns import quoted as mysql_quoted
from beadline.sinks.shared.sql.dialect import quoted
from beadline.verify.scratch import ScratchLocation, ScratchStore

if TYPE_CHECKING:
    from beadline.sinks import MySqlSink, PostgresSink

_TABLE_BYTES_MAX = 63
_LOCK_TIMEOUT_S = 5  # a locked table is left, and named
_LOOPBACK = "127.0.0.1"
_MADE_UP = ("nextval(", "now(", "current_", "clock_timestamp(", "_random_uuid(", "uuid_generate")
_POSTGRES_COLUMNS = """SELECT a.attname, coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
    a.attidentity <> '' FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""


def _appends(sink: MySqlSink | PostgresSink) -> bool:
    """Whether its epochs only add rows: these may show part by part, and change no others."""
    return sink.mode == "append"


def _scratch_table(table: str, tag: str) -> str:
    room = _TABLE_BYTES_MAX - len(tag) - 1
    return f"{table.encode()[:room].decode(errors='ignore')}_{tag}"


@contextmanager
def _postgres(sink: PostgresSink) -> Iterator[Any]:
    """A separate connection for verify; errors are reported without the address."""
    import psycopg

    try:
        with psycopg.connect(sink.dsn, autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        # Not "from error": the library may have put the address, and so the password, into it.
        said = error.diag.message_primary or type(error).__name__
        raise UsageError(f"PostgreSQL table {sink.table!r}: {said}") from None


def _postgres_name(sink: PostgresSink, table: str = "") -> str:
    """The sink's table, or another one in its schema."""
    return quoted(*filter(None, (sink.schema, table or sink.table)))


def _clone_postgres(sink: PostgresSink, place: ScratchLocation) -> PostgresSink:
    clone = replace(sink, table=_scratch_table(sink.table, place.tag))
    with _postgres(sink) as connection:
        real, scratch = _postgres_name(sink), _postgres_name(clone)
        connection.execute(f"CREATE TABLE {scratch} (LIKE {real} INCLUDING ALL)")
    return clone


def _shown_postgres(sink: PostgresSink) -> list[tuple[Any, ...]]:
    with _postgres(sink) as connection:
        name = _postgres_name(sink)
        found = connection.execute(_POSTGRES_COLUMNS, (name,)).fetchall()
        columns = [
            quoted(column)
            for column, default, identity in found
            if not identity and not any(word in default.lower() for word in _MADE_UP)
        ]
        rows: list[tuple[Any, ...]] = connection.execute(
            f"SELECT {', '.join(columns)} FROM {name}"
        ).fetchall()
        return rows


def _remove_postgres(sink: PostgresSink, query: str) -> None:
    from beadline.sinks.postgres.ledger import MARKERS

    with _postgres(sink) as connection:
        connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT_S}s'")
        connection.execute(f"DROP TABLE IF EXISTS {_postgres_name(sink)}")
        for table in (LEDGER, MARKERS):
            name = _postgres_name(sink, table)
            if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,):
                connection.execute(f"DELETE FROM {name} WHERE query = %s", (query,))


def _postgres_address(sink: PostgresSink) -> tuple[str, int] | None:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(sink.dsn)
    host = str(given.get("hostaddr") or given.get("host") or "")
    return (host, int(given.get("port") or 5432)) if host and not host.startswith("/") else None


def _postgres_through(sink: PostgresSink, port: int) -> PostgresSink:
    from psycopg.conninfo import make_conninfo

    return replace(sink, dsn=make_conninfo(sink.dsn, hostaddr=_LOOPBACK, port=port))


POSTGRES_STORE = ScratchStore(
    clone=_clone_postgres,
    shown=_shown_postgres,
    remove=_remove_postgres,
    grows=_appends,
    atomic=lambda sink: not _appends(sink),
    address=_postgres_address,
    through=_postgres_through,
    no_cuts="it is reached by a socket of this machine",
)


@contextmanager
def _mysql(sink: MySqlSink) -> Iterator[Any]:
    """A separate cursor for verify; errors are reported without the address."""
    import pymysql

    from beadline.sinks.mysql.connection import MySqlAddress

    address = MySqlAddress.parse(sink.dsn)
    try:
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            database=address.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            **dict(address.options),
        )
        with closing(connection), connection.cursor() as cursor:
            yield cursor
    except pymysql.Error as error:
        said = redacted(str(error.args[-1] if error.args else error), [address.password])
        raise UsageError(f"MySQL table {sink.table!r}: {said}") from None


def _clone_mysql(sink: MySqlSink, place: ScratchLocation) -> MySqlSink:
    clone = replace(sink, table=_scratch_table(sink.table, place.tag))
    with _mysql(sink) as cursor:
        real, scratch = mysql_quoted(sink.table), mysql_quoted(clone.table)
        cursor.execute(f"CREATE TABLE {scratch} LIKE {real}")
    return clone


def _shown_mysql(sink: MySqlSink) -> list[tuple[Any, ...]]:
    with _mysql(sink) as cursor:
        cursor.execute(f"SHOW COLUMNS FROM {mysql_quoted(sink.table)}")
        columns = [
            mysql_quoted(name)
            for name, _, _, _, default, extra in cursor.fetchall()
            if "auto_increment" not in extra.lower()
            and not any(word in str(default or "").lower() for word in _MADE_UP)
        ]
        cursor.execute(f"SELECT {', '.join(columns)} FROM {mysql_quoted(sink.table)}")
        return list(cursor.fetchall())


def _remove_mysql(sink: MySqlSink, query: str) -> None:
    from beadline.sinks.mysql.xa import XA_MARKERS

    with _mysql(sink) as cursor:
        for setting in ("lock_wait_timeout", "innodb_lock_wait_timeout"):
            cursor.execute(f"SET SESSION {setting} = {_LOCK_TIMEOUT_S}")
        cursor.execute(f"DROP TABLE IF EXISTS {mysql_quoted(sink.table)}")
        for table in (LEDGER, XA_MARKERS):
            cursor.execute("SHOW TABLES LIKE %s", (table,))
            if cursor.fetchall():
                cursor.execute(f"DELETE FROM {mysql_quoted(table)} WHERE query = %s", (query,))


def _mysql_address(sink: MySqlSink) -> tuple[str, int] | None:
    from beadline.sinks.mysql.connection import MySqlAddress

    address = MySqlAddress.parse(sink.dsn)
    return address.host, address.port


def _mysql_through(sink: MySqlSink, port: int) -> MySqlSink:
    return replace(sink, dsn=elsewhere(sink.dsn, port))


def elsewhere(url: str, port: int) -> str:
    """The same URL through a proxy on this machine."""
    parts = urlsplit(url)
    who = parts.netloc.rpartition("@")[0]
    place = f"{_LOOPBACK}:{port}"
    return urlunsplit(parts._replace(netloc=f"{who}@{place}" if who else place))


MYSQL_STORE = ScratchStore(
    clone=_clone_mysql,
    shown=_shown_mysql,
    remove=_remove_mysql,
    grows=_appends,
    atomic=lambda sink: not _appends(sink),
    address=_mysql_address,
    through=_mysql_through,
)
