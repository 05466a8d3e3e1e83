"""What an error of the server or the connection means: gone, busy, or a value that does not fit.

Told by the numbers of MySQL and MariaDB, which are the same where both have them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import TypeVar

from beadline.sink import NOT_SHOWN, Verdict, redacted, retry, running
from beadline.sinks.mysql.connection import MySqlAddress

T = TypeVar("T")

_CONNECTION_LOST = (0, 2002, 2003, 2006, 2013, 2055, 4031)
_SERVER_LEAVES = (1053, 1079, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 3169)
_TOO_MANY = (1040, 1203)
CONNECTION_GONE = frozenset((*_CONNECTION_LOST, *_SERVER_LEAVES, *_TOO_MANY))
LOCKED = frozenset((1205, 1213, 1412, 3572))  # lock wait timeout, deadlock, a table just altered
# A server that is being replaced takes no writes for a while; 3101 is a group's rollback.
_TAKES_NO_WRITES = (1290, 1836, 3101)
BUSY = frozenset((*LOCKED, *_TAKES_NO_WRITES))
MISSING_TABLE = frozenset((1051, 1146))
DENIED = frozenset((1044, 1142))  # to the user, in a database or of a table
# A login, a right, TLS, a limit of the user, a full disk or memory: it says nothing about rows.
BLOCKED = frozenset(
    (1021, 1037, 1038, 1041, 1044, 1045, 1114, 1129, 1130, 1142, 1143, 1206, 1226, 1227)
) | frozenset((1251, 1370, 1698, 1820, 1862, 2026, 2049, 2059, 2061, 3118, 3955, 4151))
UNKNOWN_XID = 1397
DUPLICATE_KEY = frozenset((1062, 1586))
# A value that a column does not take; what a whole statement does wrong is not among them.
BAD_VALUE = frozenset(
    (1048, 1118, 1263, 1264, 1265, 1292, 1300, 1301, 1366, 1367, 1406, 1411, 1690, 3140, 4025)
)
# A row that the table, as it stands, does not take: found at commit.
CONSTRAINT = frozenset((*DUPLICATE_KEY, 1216, 1452, 3819, 4025, 1644))
_SIGNALLED = frozenset((1642, 1643, 1644))  # by a user's trigger, in any words
# Errors whose text holds values of rows, in quotes; names of columns and keys come after.
_ABOUT_ROWS = DUPLICATE_KEY | BAD_VALUE
_VALUE = re.compile(
    r"(?<=value: )'.*'(?= for | at |$)|(?<=[Ee]ntry )'.*'(?= for )|(?<=data )'.*'"
    r"|(?<=string: )'.*'|(?<=out of range in )'.*'",
    re.DOTALL,
)


def library_errors() -> tuple[type[Exception], ...]:
    """What pymysql raises, whatever went wrong."""
    if importlib.util.find_spec("pymysql") is None:
        return (OSError,)  # or the error that names the missing extra would not come up
    import pymysql

    return (pymysql.Error, OSError)


def code_of(error: BaseException) -> int:
    """The server's or the library's number; -1 if there is none. An OSError is a lost connection.

    >>> code_of(ConnectionResetError()) in CONNECTION_GONE
    True
    """
    if isinstance(error, OSError):
        return _CONNECTION_LOST[-3]
    first = error.args[0] if error.args else -1
    return first if isinstance(first, int) else -1


def verdict(error: BaseException) -> Verdict:
    """Whether a retry may succeed."""
    if not isinstance(error, library_errors()):
        return Verdict.FINAL
    code = code_of(error)
    if code in _CONNECTION_LOST:
        return Verdict.AWAY
    if code in _TAKES_NO_WRITES:  # a failover, or the wrong server
        return Verdict.UNCLEAR
    return Verdict.BUSY if code in CONNECTION_GONE | BUSY else Verdict.FINAL


def is_blocked(error: BaseException) -> bool:
    """Whether it says nothing about rows: a login, a right, a limit, a server without writes."""
    return code_of(error) in BLOCKED.union(_TAKES_NO_WRITES)


def said(error: BaseException, address: MySqlAddress) -> str:
    """What the server said, in one line, without the password and without values of rows."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code_of(error) in _SIGNALLED:
        text = f"a trigger refuses it, in words that may hold values of rows {NOT_SHOWN}"
    if code_of(error) in _ABOUT_ROWS:
        text = without_values(text)
    text = redacted(" ".join(text.split()), [address.password])
    return f"{text} (error {code_of(error)})"


def without_values(text: str) -> str:
    """Return what the server said of a row without the row's values.

    >>> without_values("Incorrect integer value: '4111' for column 'n' at row 1")
    "Incorrect integer value: (not shown) for column 'n' at row 1"
    """
    return _VALUE.sub(NOT_SHOWN, text)


def retried(act: Callable[[], T], timeout_s: float) -> T:
    """Return what ``act`` returns; tried again until ``timeout_s`` after its first failure.

    For idempotent acts: after a lost answer it is not known whether the act was done.
    """
    return retry(act, verdict, running(timeout_s))
