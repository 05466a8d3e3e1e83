"""What ``MySqlSink`` asks before the first row: is the server there, may we write, does it fit?

Everything that would otherwise fail at commit, when the epoch is decided and must not fail any
more, is looked for here. Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.sink import retry, starting
from beadline.sinks.mysql.connection import Connection, MySqlAddress, MySqlServer
from beadline.sinks.mysql.modes import Merge
from beadline.sinks.mysql.plan import MySqlSettings, make_plan
from beadline.sinks.mysql.problems import CONNECTION_GONE, code_of, library_errors, said, verdict
from beadline.sinks.mysql.table import read_table
from beadline.sinks.mysql.xa import may_recover

if TYPE_CHECKING:
    import pyarrow as pa

_OLDEST = {"MySQL": (8, 0), "MariaDB": (10, 4)}
_OLDEST_XA = {"MySQL": (8, 0, 29), "MariaDB": (10, 5)}  # prepared XA outlives its connection
_HINTS = {
    1045: "User or password is wrong.",
    1044: "Let this user use the database.",
    1049: "There is no such database.",
    1142: "Grant this user SELECT, INSERT, UPDATE, DELETE, CREATE and DROP on the database.",
    1290: "Connect to a server that takes writes.",
    1665: "Set binlog_format=ROW on the server.",
    1836: "Connect to a server that takes writes.",
}


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself."""

    brand: str
    version: tuple[int, ...]
    identity: str
    unsafe: tuple[str, ...]  # settings by which a power cut undoes what was acknowledged
    wsrep: bool

    @classmethod
    def read(cls, connection: Connection, address: MySqlAddress) -> ServerFacts:
        """Ask it. MySQL has an id of its own; MariaDB's changes with its port and network card.

        So a MariaDB is known by the address that it has for its users.
        """
        ((text, flush),) = connection.ask("SELECT VERSION(), @@innodb_flush_log_at_trx_commit")
        brand = "MariaDB" if "mariadb" in str(text).lower() else "MySQL"
        found = re.findall(r"\d+", re.sub(r"^5\.5\.5-", "", str(text)))
        version = tuple(int(number) for number in found[:3])
        own = connection.ask("SHOW GLOBAL VARIABLES LIKE 'server_uuid'")
        wsrep = connection.ask("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
        return cls(
            brand,
            version,
            str(own[0][1]) if own and brand == "MySQL" else address.place,
            _unsafe(connection, int(flush)),
            bool(wsrep) and str(wsrep[0][1]).upper() == "ON",
        )

    def check(self, settings: MySqlSettings) -> None:
        """Raise if the server is too old, or one of several primaries of a cluster."""
        oldest = _OLDEST[self.brand]
        if self.wsrep:
            raise settings.bad(
                "it is a Galera cluster, where one node may not yet show what another has "
                "committed."
            )
        if self.version < oldest:
            raise settings.bad(f"{self._is_older(oldest)}.")
        if settings.xa and self.version < _OLDEST_XA[self.brand]:
            raise settings.bad(f"{self._is_older(_OLDEST_XA[self.brand])}. Use how='staged'.")

    def _is_older(self, oldest: tuple[int, ...]) -> str:
        return (
            f"the server is {self.brand} {'.'.join(map(str, self.version))}, and "
            f"{'.'.join(map(str, oldest))} is needed"
        )


def _unsafe(connection: Connection, flush: int) -> tuple[str, ...]:
    """The settings that let a commit be answered before it is on the disk."""
    # MariaDB's 3 waits for the disk twice where 1 waits once.
    found = () if flush in (1, 3) else ("innodb_flush_log_at_trx_commit",)
    ((binary_log, sync),) = connection.ask("SELECT @@log_bin, @@sync_binlog")
    # A restart rolls back every transaction that the binary log lacks.
    return (*found, "sync_binlog") if int(binary_log) and int(sync) != 1 else found


def check_server(server: MySqlServer, settings: MySqlSettings, schema: pa.Schema) -> ServerFacts:
    """Return what the server is, or raise ``BadSink`` with what to do."""

    def once() -> ServerFacts:
        with closing(server.connect()) as connection:
            facts = ServerFacts.read(connection, server.address)
            facts.check(settings)
            if settings.xa and not may_recover(connection):
                raise settings.bad(
                    "this user may not see prepared XA transactions. Grant XA_RECOVER_ADMIN, or "
                    "use how='staged'."
                )
            plan = make_plan(settings, schema, read_table(connection, settings.table))
            written = tuple(each.column.name for each in plan.columns if each.in_table)
            _probe(connection, Merge(settings, written))
            return facts

    try:
        return retry(once, verdict, starting(server.timeout_s))
    except library_errors() as error:
        code = code_of(error)
        hint = _HINTS.get(code, "")
        if code in CONNECTION_GONE:
            hint = "Is the server running, and are host and port right?"
        raise settings.bad(f"{said(error, server.address)}. {hint}") from None


def _probe(connection: Connection, merge: Merge) -> None:
    """Run what a commit runs, on no rows: a right that is missing is found now."""
    connection.run("START TRANSACTION")
    for statement in merge.probes():
        connection.run(statement)
    connection.run("ROLLBACK")
