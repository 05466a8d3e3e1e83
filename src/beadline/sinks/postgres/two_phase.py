"""Commit of prepared transactions: each by its global id, and a proof where the id is unknown.

"There is no such prepared transaction" is the answer for one that was committed and for one that is
lost. The marker that is committed with the rows tells them apart. A late commit changes nothing: an
id names one attempt at one part of one epoch, and only a process that has the decision commits it.

COMMIT PREPARED cannot be in one transaction with anything, so whether the server has all earlier
epochs is asked just before. A server that took over in between has, where it knows the id, also
all that was written before it; where it does not, the part is lost, and asked about once more.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from beadline.sink import EpochId, Outcome, PartId, reach
from beadline.sinks.postgres.connect import PostgresAddress, RunStatement, literal
from beadline.sinks.postgres.ledger import PostgresLedger
from beadline.sinks.postgres.part import PostgresParts
from beadline.sinks.postgres.problems import (
    IN_USE,
    UNKNOWN_OBJECT,
    is_database_error,
    is_transient,
    said,
    sql_state,
)
from beadline.sinks.postgres.table import PostgresTable

# Each commit is one wait for the disk; a connection costs about as much as a few of them.
_PER_CONNECTION = 4
_CONNECTIONS_MAX = 8


def commit(
    run: RunStatement,
    server: PostgresAddress,
    where: str,
    table: PostgresTable,
    epoch: EpochId,
    parts: PostgresParts,
    of_all: int,
) -> tuple[dict[PartId, Outcome], str]:
    """Commit every part; return what became of each, and an explanation of what is unknown.

    ``of_all`` is how many parts the epoch has, with those that are staged.
    """
    ledger = PostgresLedger(run, table.schema, table.target)
    name = parts[0].id.sink
    run("BEGIN")
    if ledger.read(epoch.query).hold(epoch, where, name):
        run("ROLLBACK")
        return {part.id: Outcome.ALREADY_COMMITTED for part in parts}, ""
    # Only housekeeping: if a power cut undoes it, it undoes both of its halves, and all that comes
    # after it.
    run("SET LOCAL synchronous_commit = off")
    ledger.complete_before(epoch, name, of_all)
    run("COMMIT")
    answers = _commit_all(run, server, parts)
    unknown = [part for part in parts if answers[part.id] == UNKNOWN_OBJECT]
    proven: set[str] = set()
    if unknown:
        proven = ledger.committed(epoch, name, [part.committable.name for part in unknown])
    outcomes, words = {}, set()
    for part in parts:
        answer = answers[part.id]
        if answer == "":
            outcomes[part.id] = Outcome.COMMITTED
        elif answer != UNKNOWN_OBJECT:
            outcomes[part.id] = Outcome.UNKNOWN
            words.add(answer)
        elif part.committable.name in proven:
            outcomes[part.id] = Outcome.ALREADY_COMMITTED
        else:
            outcomes[part.id] = Outcome.LOST
            words.add(f"{part.committable.name} is neither prepared nor committed")
    return outcomes, "; ".join(sorted(words))


def _commit_all(
    run: RunStatement, server: PostgresAddress, parts: PostgresParts
) -> dict[PartId, str]:
    count = min(_CONNECTIONS_MAX, -(-len(parts) // _PER_CONNECTION))
    if count == 1:
        return _commit_some(run, server, parts)
    shares = [parts[number::count] for number in range(count)]

    def one(share: PostgresParts) -> dict[PartId, str]:
        with server.connected() as other:
            return _commit_some(other, server, share)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, share) for share in shares]
    return {id_: answer for future in futures for id_, answer in future.result().items()}


def _commit_some(
    run: RunStatement, server: PostgresAddress, parts: PostgresParts
) -> dict[PartId, str]:
    """The error code that the server answered for each: empty if it was committed."""
    answers = {}
    for part in parts:
        reach("ledger.before")
        try:
            run(f"COMMIT PREPARED {literal(part.committable.name)}")
            answers[part.id] = ""
        except Exception as error:
            if not is_database_error(error):
                raise
            state = sql_state(error)
            if state == UNKNOWN_OBJECT:
                answers[part.id] = UNKNOWN_OBJECT
            elif state == IN_USE or is_transient(error):
                answers[part.id] = said(error, server.dsn)
            else:
                raise
        reach("ledger.after")
    return answers
