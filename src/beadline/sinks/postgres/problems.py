"""What the server says when something is wrong: what kind of answer it is, and in which words.

Errors of the client libraries are never shown or chained as they are: only what the server itself
said, with the password taken out.
"""

from __future__ import annotations

import re

# The server cannot be asked now; later it may answer. Everything else is its last word.
_TRANSIENT_CLASSES = ("08", "40", "53", "57")
_TRANSIENT = {"25006", "25P03", "55006", "55P03"}
_TRANSIENT_NEVER = {"57014"}
# A row is at fault: a value, a check, a row too large. Not so where the form of COPY is wrong.
_MISFIT_CLASSES = ("22", "54")
_MISFIT = {"23502", "23514"}
_MISFIT_NEVER = {"22P03", "22P04"}
UNKNOWN_OBJECT = "42704"
BUSY = "55000"  # said of a prepared transaction that somebody else has in his hands
LOCKED = "55P03"
OUT_OF_MEMORY = "53200"  # of the memory for prepared transactions or locks, mostly
# In which column, as the server's context has it: "COPY orders, line 1, column doc".
_COLUMN = re.compile(r"^COPY .*, line \d+, column ([^:\n]+)", re.MULTILINE)


def sql_state(error: BaseException) -> str | None:
    """Return the server's code for an error; None if the server said nothing."""
    state = getattr(error, "sqlstate", None)
    return str(state) if state else None


def is_database_error(error: BaseException) -> bool:
    """Whether an error comes from one of the two client libraries."""
    import psycopg
    from adbc_driver_manager import Error

    return isinstance(error, psycopg.Error | Error)


def is_transient(error: BaseException) -> bool:
    """Whether it may help to ask again: no answer, a lock, a server that stops or starts."""
    state = sql_state(error)
    if state is None:
        return type(error).__name__ in ("OperationalError", "InterfaceError")
    return state in _TRANSIENT or (
        state[:2] in _TRANSIENT_CLASSES and state not in _TRANSIENT_NEVER
    )


def is_misfit(error: BaseException) -> bool:
    """Whether some row is at fault, so that the others may be taken without it."""
    state = sql_state(error) if is_database_error(error) else None
    if state is None or state in _MISFIT_NEVER:
        return False
    return state in _MISFIT or state[:2] in _MISFIT_CLASSES


def said(error: BaseException, dsn: str) -> str:
    """Return what the server said, on one line, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in _secrets(dsn):
        text = text.replace(secret, "…")
    state = sql_state(error)
    return f"{text} (SQLSTATE {state})" if state else text


def why_refused(error: BaseException, dsn: str) -> str:
    """Return what the server has against one row: its first sentence, and the column."""
    told = {_text(name): _text(value) for name, value in getattr(error, "details", ())}
    why = told.get("PG_DIAG_MESSAGE_PRIMARY")
    if not why:
        return said(error, dsn)
    column = _COLUMN.search(told.get("PG_DIAG_CONTEXT", ""))
    return f"column {column[1].strip()!r}: {why}" if column else why


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _secrets(dsn: str) -> list[str]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(dsn)
    except psycopg.Error:
        return [dsn]
    found = [str(given[name]) for name in ("password", "sslpassword") if given.get(name)]
    return [*([dsn] if dsn else []), *found]
