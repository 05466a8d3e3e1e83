"""The server behind the address: how long it is waited for, what it is, and which it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from beadline.errors import BadSink
from beadline.sinks.mysql.address import Address
from beadline.sinks.mysql.connection import Connection, connect

_OLDEST = {"MySQL": (8, 0), "MariaDB": (10, 4)}
_OLDEST_XA = {"MySQL": (8, 0, 29), "MariaDB": (10, 5)}  # prepared XA outlives its connection


@dataclass(frozen=True)
class Server:
    """An address, and for how long to be patient."""

    address: Address
    timeout_s: float

    def connect(self) -> Connection:
        """Connect once."""
        return connect(self.address, self.timeout_s)


@dataclass(frozen=True)
class Facts:
    """What a server says of itself."""

    brand: str
    version: tuple[int, ...]
    identity: str
    unsafe: tuple[str, ...]  # settings by which a power cut takes back what was acknowledged
    wsrep: bool

    @classmethod
    def read(cls, connection: Connection, address: Address) -> Facts:
        """Ask. MySQL has an id of its own; MariaDB's changes with its port and network card.

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

    def check(self, where: str) -> None:
        """Raise if the server is older than what this was written for, or one of many equals."""
        oldest = _OLDEST[self.brand]
        why = self._is_older(oldest) if self.version < oldest else ""
        if self.wsrep:
            why = "it is a Galera cluster, where one node may not yet show what another has taken"
        if why:
            raise BadSink(f"{where}: {why}. Nothing was written.")

    def check_xa(self, where: str) -> None:
        """Raise unless a prepared XA transaction outlives its connection."""
        oldest = _OLDEST_XA[self.brand]
        if self.version < oldest:
            raise BadSink(
                f"{where}: {self._is_older(oldest)}. Use how='staged'. Nothing was written."
            )

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
    # A restart takes back every transaction that the binary log has not got.
    return (*found, "sync_binlog") if int(binary_log) and int(sync) != 1 else found
