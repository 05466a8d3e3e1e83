"""Everything about an HBase that can be refused is refused here, before anything is written."""

from __future__ import annotations

from beadline.errors import BadSink
from beadline.sinks.hbase.client import Client, ThriftServer, asked, no_table
from beadline.sinks.hbase.columns import NOTHING, Cells
from beadline.sinks.hbase.ledger import Ledger
from beadline.sinks.shared.retry import Rejected, Unavailable, starting


def check_server(server: ThriftServer, table: str, cells: Cells, where: str) -> str:
    """Reachable? is the table there, with these families, and enabled? Return the cluster's id."""

    def look(client: Client) -> str:
        _check_table(client, table, cells, where)
        Ledger(table).check(client, where)
        return client.cluster_id() or str(server)

    try:
        return asked(server, look, starting(server.timeout_s))
    except Unavailable as problem:
        raise unreachable(server, where, problem) from problem
    except Rejected as error:
        raise BadSink(f"{where}: HBase rejects this: {error}. {NOTHING}") from error


def unreachable(server: ThriftServer, where: str, problem: Unavailable) -> BadSink:
    """The error for a server that does not answer."""
    return BadSink(
        f"{where}: HBase's Thrift server at {server} does not answer: {problem}. Is it running "
        "('hbase thrift start', the default transport and protocol), and HBase behind it? "
        f"{NOTHING} Start again when it is up."
    )


def _check_table(client: Client, table: str, cells: Cells, where: str) -> None:
    families = ", ".join(f"'{name}'" for name in cells.families)
    try:
        found = client.families(table)
    except Rejected as error:
        if not no_table(error):
            raise
        raise BadSink(
            f"{where} does not exist. Make it in the HBase shell: create '{table}', {families}. "
            f"{NOTHING}"
        ) from error
    missing = [name for name in cells.families if name not in found]
    if missing:
        adds = ", ".join(f"'{name}'" for name in missing)
        raise BadSink(
            f"{where} has no column family {adds}; it has {', '.join(sorted(found))}. Name another "
            f"in family= or columns=, or add it in the HBase shell: alter '{table}', {adds}. "
            f"{NOTHING}"
        )
    if not client.is_enabled(table):
        raise BadSink(f"{where} is disabled. In the HBase shell: enable '{table}'. {NOTHING}")
