"""What ``MySqlSink`` asks before the first row: is the server there, may we write, does it fit?

Everything that would otherwise fail at commit, when the epoch is decided and must not fail any
more, is looked for here. Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from beadline.errors import BadSink
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.merge import Merge
from beadline.sinks.mysql.plan import NOTHING, Wish, make_plan
from beadline.sinks.mysql.problems import GONE, code_of, library_errors, said, verdict
from beadline.sinks.mysql.server import Facts, Server
from beadline.sinks.mysql.table import read_table
from beadline.sinks.mysql.xa import may_recover
from beadline.sinks.shared.retry import retry, starting

if TYPE_CHECKING:
    import pyarrow as pa

_HINTS = {
    1045: "User or password is wrong.",
    1044: "Let this user use the database.",
    1049: "There is no such database.",
    1142: "Grant this user SELECT, INSERT, UPDATE, DELETE, CREATE and DROP on the database.",
    1290: "Connect to a server that takes writes.",
    1665: "Set binlog_format=ROW on the server.",
    1836: "Connect to a server that takes writes.",
}


def check_server(server: Server, schema: pa.Schema, wish: Wish, xa: bool, where: str) -> Facts:
    """Return what the server is, or raise ``BadSink`` with what to do."""

    def once() -> Facts:
        with closing(server.connect()) as connection:
            facts = Facts.read(connection, server.address)
            facts.check(where)
            if xa:
                facts.check_xa(where)
                _check_recover(connection, where)
            plan = make_plan(schema, read_table(connection, wish.table), wish, where)
            _probe(connection, Merge(wish, plan.written))
            return facts

    try:
        return retry(once, verdict, starting(server.timeout_s))
    except library_errors() as error:
        code = code_of(error)
        hint = _HINTS.get(code, "")
        if code in GONE:
            hint = "Is the server running, and are host and port right?"
        raise BadSink(f"{where}: {said(error, server.address)}. {hint} {NOTHING}") from None


def _check_recover(connection: Connection, where: str) -> None:
    if not may_recover(connection):
        raise BadSink(
            f"{where}: this user may not see prepared XA transactions. Grant XA_RECOVER_ADMIN, or "
            f"use how='staged'. {NOTHING}"
        )


def _probe(connection: Connection, merge: Merge) -> None:
    """Run what a commit runs, on no rows: a right that is missing is found now."""
    connection.run("START TRANSACTION")
    for statement in merge.probes():
        connection.run(statement)
    connection.run("ROLLBACK")
