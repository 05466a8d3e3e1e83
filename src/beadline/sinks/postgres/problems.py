"""What the server says when something is wrong: what kind of answer it is, and in which words.

Errors of the client libraries are never shown or chained as they are: only what the server itself
said, with the password taken out, and with it the values of rows.
"""

from __future__ import annotations

import importlib.util
import re

from beadline.sink import NOT_SHOWN, Reason, Verdict, redacted

# The server cannot be asked now; later it may answer. Everything else is its last word.
_TRANSIENT_CLASSES = ("08", "40", "53", "57")
_TRANSIENT = {"25006", "25P03", "55006", "55P03"}
# A row is at fault: a value, a check, a row too large. Not so where the form of COPY is wrong.
_MISFIT_CLASSES = ("22", "54")
_MISFIT = {"23502", "23514"}
_MISFIT_NEVER = {"22P03", "22P04"}
UNKNOWN_OBJECT = "42704"
IN_USE = "55000"  # said of a prepared transaction that another session is finishing
LOCK_NOT_AVAILABLE = "55P03"
INSUFFICIENT_PRIVILEGE = "42501"
OUT_OF_MEMORY = "53200"  # of the memory for prepared transactions or locks, mostly
CANCELLED = "57014"
# Classes of errors that the server itself raises, in words that hold no value of a row, except for
# the first, where values stand in quotes or as bytes. What triggers raise has any class, mostly
# others.
_VALUES = "22"
_SERVERS_OWN = re.compile("0[1238AB]|2[0-8BD]|34|3[BDF]|4[024]|5[34578]|72|F0|XX")
# The context of an error that a trigger or function raised, whatever its class.
_RAISED = re.compile(r"\b(?:pl_exec\.c|plpy_|plperl|pltcl|plv8|plr\b|pljava)")
_QUOTES = "\"'`\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e\u2039\u203a\u300c\u300d\u300e\u300f"
# From the first quotation mark to the last, as a value may hold some; of every language.
_VALUE = re.compile(
    f"[{_QUOTES}].*[{_QUOTES}]|0x[0-9a-fA-F]{{2}}(?:[ ,]+0x[0-9a-fA-F]{{2}})*", re.DOTALL
)
_NAMES = ("constraint", "column", "table", "schema")
# A connection that failed has no SQLSTATE, only text: of the server, after its severity and two
# blanks, in whatever language it speaks; or of the client library, in English.
_FAILED = re.compile(r"connection to server (?:at|on) .*? failed: ")
_SERVER_SAYS = re.compile(r"[^\s:]+:  ")
_NOT_NOW = re.compile(
    r"starting up|shutting down|in recovery mode|not yet accepting|system is not accepting"
    r"|consistent recovery state|too many (clients|connections)|connection slots"
)
_NEVER = re.compile(
    r"authentication failed|no pg_hba.conf entry|pg_hba.conf rejects|does not exist"
    r"|not permitted to log in|permission denied|not currently accepting connections|no password"
    r"|does not support SSL|certificate verify failed|root certificate"
)
# In which column, as the server's context has it: "COPY orders, line 1, column doc".
_COLUMN = re.compile(r"^COPY .*, line \d+, column ([^:\n]+)", re.MULTILINE)


def sql_state(error: BaseException) -> str | None:
    """Return the server's code for an error; None if the server said nothing."""
    state = getattr(error, "sqlstate", None)
    return str(state) if state else None


def is_database_error(error: BaseException) -> bool:
    """Whether an error comes from one of the two client libraries."""
    if importlib.util.find_spec("psycopg") is None:
        return False  # or the error that names the missing extra would not come up
    import psycopg
    from adbc_driver_manager import Error

    return isinstance(error, psycopg.Error | Error)


def verdict(error: BaseException) -> Verdict:
    """Whether a retry may succeed: no answer, a lock, a server that stops or starts."""
    if not is_database_error(error):
        return Verdict.FINAL
    state = sql_state(error)
    if state is not None:
        passes = state in _TRANSIENT or (state[:2] in _TRANSIENT_CLASSES and state != CANCELLED)
        return Verdict.BUSY if passes else Verdict.FINAL
    if type(error).__name__ not in ("OperationalError", "InterfaceError"):
        return Verdict.FINAL
    # One for each host of the address: as long as one of them may come back, it may pass.
    found = {_connecting(text) for text in _FAILED.split(str(error))[1:]} or {Verdict.AWAY}
    passing = (Verdict.BUSY, Verdict.AWAY, Verdict.UNCLEAR)
    return next((each for each in passing if each in found), Verdict.FINAL)


def _connecting(text: str) -> Verdict:
    """Judge what comes after "failed: " of one host."""
    if _NEVER.search(text):
        return Verdict.FINAL
    if not _SERVER_SAYS.match(text):
        return Verdict.AWAY
    return Verdict.BUSY if _NOT_NOW.search(text) else Verdict.UNCLEAR


def is_transient(error: BaseException) -> bool:
    """Whether it may help to ask again."""
    return verdict(error) is not Verdict.FINAL


def is_blocked(error: BaseException) -> bool:
    """Whether it says nothing about rows: a login, a right, a limit, a cancelled statement."""
    state = sql_state(error)
    blocked = (INSUFFICIENT_PRIVILEGE, OUT_OF_MEMORY, CANCELLED)
    return state is None or state[:2] == "28" or state in blocked


def is_misfit(error: BaseException) -> bool:
    """Whether some row is at fault, so that the others may be taken without it."""
    state = sql_state(error) if is_database_error(error) else None
    if state is None or state in _MISFIT_NEVER:
        return False
    return state in _MISFIT or state[:2] in _MISFIT_CLASSES


def said(error: BaseException, dsn: str) -> str:
    """Return what the server said, on one line, without secrets and without values of rows.

    Its first sentence alone: details, hints and the context hold rows, whatever the class.
    """
    state = sql_state(error)
    text = str(error) if state is None else _shown(error, state)
    text = redacted(" ".join(text.split()) or type(error).__name__, _secrets(dsn))
    return f"{text} (SQLSTATE {state})" if state else text


def _shown(error: BaseException, state: str) -> str:
    """Return the server's first sentence without a value of a row.

    Names of tables, columns and constraints are quoted where a constraint is broken; where a value
    is bad, the value is. A sentence of a user's trigger may hold anything.
    """
    text = _field(error, "MESSAGE_PRIMARY")
    if not text or not _SERVERS_OWN.match(state) or _RAISED.search(_field(error, "SOURCE_FILE")):
        found = {name: _field(error, f"{name.upper()}_NAME") for name in _NAMES}
        names = ", ".join(f"{name} {value!r}" for name, value in found.items() if value)
        return (
            f"the database refuses it{names and f' ({names})'}; the words may hold values of rows: "
            "the server's own log has them"
        )
    in_function = "PL/" in _field(error, "CONTEXT")
    return _VALUE.sub(NOT_SHOWN, text) if state[:2] == _VALUES or in_function else text


def _field(error: BaseException, field: str) -> str:
    """Return a field of what the server said, by either client library; empty if it has none."""
    diagnosis = getattr(error, "diag", None)
    if diagnosis is not None:
        return str(getattr(diagnosis, field.lower(), None) or "")
    fields = {_text(name): _text(value) for name, value in getattr(error, "details", ())}
    return fields.get(f"PG_DIAG_{field}", "")


def why_refused(error: BaseException, dsn: str) -> Reason:
    """Return what the server has against one row: its first sentence, and the column."""
    why = _field(error, "MESSAGE_PRIMARY")
    if not why:
        text = said(error, dsn)
        return Reason(text, text)
    column = _COLUMN.search(_field(error, "CONTEXT"))
    where = f"column {column[1].strip()!r}: " if column else ""
    return Reason(f"{where}{why}", f"{where}{_shown(error, sql_state(error) or '')}")


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
