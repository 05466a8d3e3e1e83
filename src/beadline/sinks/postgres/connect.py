"""The server: connections to it, SQL literals, and queries that wait for it while it is away.

The settings that every connection needs go with the start of it, so that they cost no round trip.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from beadline.sink import BadSink, require, retry, running
from beadline.sinks.postgres.problems import is_database_error, said, verdict

if TYPE_CHECKING:
    import psycopg

RunStatement = Callable[[str], list[tuple[Any, ...]]]

_CONNECT_TIMEOUT_S = 10.0
# Commits, and the making of a staging table, must survive a power cut whatever the server's
# default; values other than "off" are the user's choice of which standby to wait for. A limit on
# transactions, unknown to servers before 17, would make large epochs fail for ever.
_FIRST = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off' "
    "UNION ALL SELECT set_config('transaction_timeout', '0', false) "
    "WHERE current_setting('transaction_timeout', true) <> '0'"
)
# As the client library reads it: what comes before the first @, if no / does, is user and password.
_URL = re.compile(r"postgres(ql)?://([^@/]*@)?(?P<rest>[^?]*)")

T = TypeVar("T")


def _conninfo(dsn: str, timeout_s: float) -> str:
    """Return the address with Beadline's settings; raise without repeating it if it is none."""
    require("postgres")
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    url = _URL.match(dsn)
    if url is not None and "@" in url["rest"]:
        # Read on, a part of the password would be taken for the host, and shown as such.
        raise BadSink(
            "the dsn of PostgresSink has an '@' too many, or a '/' before it. In a user or "
            "password write '@' as %40, '/' as %2F and ':' as %3A. The dsn is not repeated here, "
            "because it holds the password. Nothing was written."
        )
    try:
        given = conninfo_to_dict(dsn)
        lock_ms = max(1, int(timeout_s * 1000))
        settings = {
            "lock_timeout": str(lock_ms),
            "idle_in_transaction_session_timeout": str(max(lock_ms, 60_000)),
            "statement_timeout": "0",  # an epoch is as large as it is
            "default_transaction_isolation": "read\\ committed",
            "standard_conforming_strings": "on",
            "client_min_messages": "error",
        }
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        defaults = {
            "connect_timeout": str(max(2, int(min(timeout_s, _CONNECT_TIMEOUT_S)))),
            "application_name": "beadline",
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
            "tcp_user_timeout": "30000",
        }
        options = " ".join(filter(None, (str(given.get("options") or ""), ours)))
        # Both client libraries send UTF-8 as it is, whatever the database and the user prefer.
        fixed = {"options": options, "client_encoding": "UTF8"}
        return make_conninfo(dsn, **{**defaults, **given, **fixed})
    except psycopg.Error:
        raise BadSink(
            "the dsn of PostgresSink is not an address of PostgreSQL, which reads "
            "postgresql://user:password@host:5432/database, with special characters of user and "
            "password as %XX ('@' is %40). Nothing was written."
        ) from None


@dataclass(frozen=True)
class PostgresAddress:
    """Where the server is, and how long it is waited for while it is away."""

    dsn: str = field(repr=False)
    timeout_s: float

    @contextmanager
    def connected(self, *, again: bool = False) -> Iterator[RunStatement]:
        """A connection on which every statement is a transaction, unless one is begun.

        ``again`` takes one that this process used before, if it still answers, and leaves it for
        the next time: making one costs more than a small epoch.
        """
        address = _conninfo(self.dsn, self.timeout_s)
        import psycopg

        def make() -> psycopg.Connection[Any]:
            made = psycopg.connect(address, autocommit=True)
            made.prepare_threshold = None  # a pooler in between may not know prepared statements
            return made

        with _kept(("plain", address), make, _runner, again) as connection:
            yield _runner(connection)

    @contextmanager
    def arrow_connected(self) -> Iterator[tuple[Any, RunStatement]]:
        """A connection that takes Arrow, used again; its cursor, and a way to run SQL."""
        address = _conninfo(self.dsn, self.timeout_s)
        from adbc_driver_postgresql import dbapi

        def make() -> Any:
            return dbapi.connect(address, autocommit=True)

        with (
            _kept(("arrow", address), make, _arrow_runner, True) as connection,
            connection.cursor() as cursor,
        ):
            yield cursor, _arrow_runner(connection)

    def ask(self, where: str, act: Callable[[RunStatement], T]) -> T:
        """Run what is idempotent until the server answers; errors hold no secret."""

        def once() -> T:
            with self.connected() as run:
                return act(run)

        try:
            return retry(once, verdict, running(self.timeout_s))
        except Exception as error:
            if not is_database_error(error):
                raise
            raise OSError(f"{where}: {said(error, self.dsn)}") from None


def literal(text: str) -> str:
    """Return a text as SQL holds it; backslashes are plain, as the standard says.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


# Idle connections of this process: a fork must not use its parent's.
_idle: dict[tuple[int, str, str], Any] = {}


@atexit.register
def _close_idle() -> None:
    """Close them while that can be done: at the very end ADBC's own tidying fails, and says so."""
    for place in [each for each in _idle if each[0] == os.getpid()]:
        with suppress(Exception):
            _idle.pop(place).close()


@contextmanager
def _kept(
    name: tuple[str, str],
    make: Callable[[], Any],
    run_on: Callable[[Any], RunStatement],
    again: bool,
) -> Iterator[Any]:
    place = (os.getpid(), *name)
    connection = _idle.pop(place, None) if again else None
    if connection is not None and not _answers(connection, run_on):
        connection = None
    fresh = connection is None
    connection = make() if fresh else connection
    try:
        if fresh:
            run_on(connection)(_FIRST)
        yield connection
    except BaseException:
        _close(connection)
        raise
    # Two threads may come back at once: one connection is enough to keep.
    other = _idle.setdefault(place, connection) if again else None
    if other is not connection:
        _close(connection)


def _answers(connection: Any, run_on: Callable[[Any], RunStatement]) -> bool:
    try:
        run_on(connection)(_FIRST)
    except Exception as error:
        if not is_database_error(error):
            raise
        _close(connection)
        return False
    return True


def _close(connection: Any) -> None:
    """Close it, which rolls back what is not committed; a server that is gone notices by itself."""
    try:
        connection.close()
    except Exception as error:
        if not is_database_error(error):
            raise


def _runner(connection: psycopg.Connection[Any]) -> RunStatement:
    """Return a way to run SQL on a connection of psycopg."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement.encode())  # as bytes: a % is no placeholder
        return cursor.fetchall() if cursor.description else []

    return run


def _arrow_runner(connection: Any) -> RunStatement:
    """Return a way to run SQL on a connection of ADBC."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            # A statement without a result has no columns to fetch.
            return list(cursor.fetchall()) if cursor.description else []

    return run
