"""Which of the two ways: prepared transactions, or staging tables and one transaction.

A prepared transaction keeps its locks until it is committed. Two parts of one epoch that meet in
a unique index would wait for each other, one of them for ever. So they are only used where two
parts cannot meet: for plain appends into a table in which nothing but rows is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.sinks.postgres.table import Table

if TYPE_CHECKING:
    from beadline.sinks.postgres.sink import PostgresSink

# So many free slots must be left to others, and to parts that begin at the same moment.
_FREE_MIN = 4


def why_not_prepared(sink: PostgresSink, table: Table) -> str | None:
    """Return why this table, on this server, cannot take prepared transactions; None if it can."""
    if sink.mode != "append":
        return f"mode {sink.mode!r} needs all parts at once"
    if table.in_the_way:
        return table.in_the_way[0]
    if table.max_prepared == 0:
        return "max_prepared_transactions is 0 on this server"
    return None


def why_staged(sink: PostgresSink, table: Table, used: int = 0) -> str | None:
    """Return why a part is staged; None if it is a prepared transaction.

    ``used`` is how many prepared transactions there are now, of anybody.
    """
    if sink.how == "staged":
        return "how='staged'"
    reason = why_not_prepared(sink, table)
    if reason is None and sink.how == "auto" and table.max_prepared - used < _FREE_MIN:
        return f"max_prepared_transactions is {table.max_prepared}, and {used} are in use"
    return reason
