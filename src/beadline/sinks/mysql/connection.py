"""The server: its address, and connections that are set up so that no value is changed silently.

A URL that cannot be read is never repeated in an error: it holds the password.

``LOAD DATA LOCAL`` is the fastest way in, and lets a server ask its client for any file that the
client can read. Here no file is ever opened: whatever name the server asks for, it gets the rows
that were given to ``load``.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from beadline.sink import BadSink, require

PORT = 3306
_FORM = "mysql://user:password@host:3306/database"
_TLS = ("ssl_ca", "ssl_cert", "ssl_key")
_YES = {"true": True, "1": True, "false": False, "0": False}
_SWITCHES = ("ssl_verify_cert", "ssl_verify_identity")
_CONNECT_TIMEOUT_S = 10.0  # and for each step of the greeting
_STATEMENT_TIMEOUT_S = 1800.0  # of one statement; an epoch's INSERT ... SELECT may be long
# A host that is gone is noticed within half a minute, while a statement may still be long.
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
_LOCK_WAIT_S = 20  # less than a driver waits, so that a commit is not given up half-way
_QUIT_TIMEOUT_S = 1.0
_PACKET_BYTES = 1 << 18
_SORT_BYTES = 1 << 13  # more than a key can have; the server's own limit would mix long keys up
# NO_AUTO_VALUE_ON_ZERO: without it a 0 for an AUTO_INCREMENT column becomes another number.
_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)


@dataclass(frozen=True)
class MySqlAddress:
    """Server, login and database."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, dsn: str) -> MySqlAddress:
        """Read ``mysql://user:password@host:port/database``, percent-encoded like any URL."""
        try:
            url = urlsplit(dsn)
            port = url.port or PORT
        except ValueError:
            raise _bad("it is not a URL; percent-encode odd characters in it") from None
        if url.scheme not in ("mysql", "mariadb"):
            raise _bad("it does not begin with mysql://")
        if not url.hostname or not url.username:
            raise _bad("host or user is missing")
        database = unquote(url.path.lstrip("/"))
        if not database or "/" in url.path.lstrip("/"):
            raise _bad("the name of the database is missing")
        options = tuple(_option(name, value) for name, value in parse_qsl(url.query))
        password = unquote(url.password or "")
        return cls(url.hostname, port, unquote(url.username), password, database, options)

    @property
    def place(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


def _option(name: str, value: str) -> tuple[str, Any]:
    if name in _TLS:
        return name, value
    if name in _SWITCHES and value.lower() in _YES:
        return name, _YES[value.lower()]
    known = ", ".join((*_TLS, *_SWITCHES))
    raise _bad(f"option {name!r} is not one of {known}, or has no value that fits")


def _bad(why: str) -> BadSink:
    return BadSink(f"The address of the MySQL server must be {_FORM}: {why}. Nothing was written.")


@dataclass(frozen=True)
class MySqlServer:
    """Where the server is, and how long it is waited for while it is away."""

    address: MySqlAddress
    timeout_s: float

    def connect(self) -> Connection:
        """Connect once. An idle connection is ended by the server after ``timeout_s``.

        So a driver that is paused with a transaction open does not hold up its successor for long.
        """
        return _connect(self.address, self.timeout_s)


def _connect(address: MySqlAddress, timeout_s: float) -> Connection:
    require("mysql")
    settings = {
        "sql_mode": f"'{_SQL_MODE}'",
        "time_zone": "'+00:00'",
        "lc_messages": "'en_US'",  # values of rows are found in the server's words, and not shown
        "autocommit": 1,
        "completion_type": 0,
        "sql_safe_updates": 0,
        "max_error_count": 64,
        "max_sort_length": _SORT_BYTES,
        "wait_timeout": max(2, int(timeout_s)),
        "lock_wait_timeout": min(_LOCK_WAIT_S, max(1, int(timeout_s))),
        "innodb_lock_wait_timeout": min(_LOCK_WAIT_S, max(1, int(timeout_s))),
    }
    raw = _loading_class()(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password.encode(),
        database=address.database,
        charset="utf8mb4",
        autocommit=None,
        local_infile=True,
        connect_timeout=min(_CONNECT_TIMEOUT_S, max(1.0, timeout_s)),
        read_timeout=_CONNECT_TIMEOUT_S,
        write_timeout=_CONNECT_TIMEOUT_S,
        **dict(address.options),
    )
    connection = Connection(raw)
    try:
        _watch(raw)
        assignments = ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())
        connection.run(f"SET {assignments}")
        # Rows read by INSERT ... SELECT are not locked then, and parts do not lock each other's.
        connection.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
    except BaseException:
        connection.close()
        raise
    return connection


def _watch(raw: Any) -> None:
    """Let the system probe the connection, TLS or not, and statements take their time."""
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # not every system has them all
            raw._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    raw._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw._read_timeout = raw._write_timeout = _STATEMENT_TIMEOUT_S


@dataclass(frozen=True)
class Warned:
    """One warning of a statement."""

    code: int
    text: str


class Connection:
    """What the sink needs of a connection; every statement is a transaction unless one is begun."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; return the number of rows that it touched."""
        with self._raw.cursor() as cursor:
            return int(cursor.execute(statement, tuple(values) or None))

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query; return its rows."""
        with self._raw.cursor() as cursor:
            cursor.execute(statement, tuple(values) or None)
            return list(cursor.fetchall())

    def load(self, statement: str, rows: memoryview) -> int:
        """Run ``LOAD DATA LOCAL`` on rows in memory; return how many were taken."""
        self._raw.payload = rows
        try:
            return int(self._raw.query(statement))
        finally:
            self._raw.payload = None

    def send(self, statement: bytes) -> int:
        """Run a statement that is made already."""
        return int(self._raw.query(statement))

    def warnings(self) -> list[Warned]:
        """What the last statement warned of: ``LOAD DATA LOCAL`` only warns of what it changes."""
        result = self._raw._result
        if result is not None and not result.warning_count:
            return []
        found = self.ask("SHOW WARNINGS")
        return [Warned(int(code), str(text)) for _level, code, text in found]

    def commit(self) -> None:
        """End the transaction; its rows are durable when this returns."""
        self.run("COMMIT")

    def close(self) -> None:
        """Disconnect, whatever state it is in; an open transaction is rolled back.

        With COM_QUIT, or the server would count each as an aborted connection and log a warning.
        """
        if self._raw.open:  # not one that was lost
            # A server that hangs reads nothing; the answer is not waited for, as there is none.
            self._raw._write_timeout = _QUIT_TIMEOUT_S
            self._raw.close()


@functools.cache
def _loading_class() -> type[Any]:
    from pymysql.connections import Connection as Plain
    from pymysql.connections import MySQLResult

    class LoadingResult(MySQLResult):  # type: ignore[misc]
        def _read_load_local_packet(self, first_packet: Any) -> None:
            connection = self.connection
            rows = connection.payload or memoryview(b"")
            for start in range(0, len(rows), _PACKET_BYTES):
                connection.write_packet(bytes(rows[start : start + _PACKET_BYTES]))
            connection.write_packet(b"")
            self._read_ok_packet(connection._read_packet())

    class Loading(Plain):  # type: ignore[misc]
        payload: memoryview | None = None

        def _read_query_result(self, unbuffered: bool = False) -> int:
            self._result = None
            result = LoadingResult(self)
            result.read()
            self._result = result
            if result.server_status is not None:
                self.server_status = result.server_status
            return int(result.affected_rows)

    return Loading
