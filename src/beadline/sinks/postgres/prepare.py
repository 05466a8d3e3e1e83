"""Prepare: a part's rows by binary COPY, into a transaction that is prepared or a staging table.

Either all of a part is there under its name, or nothing is: a staging table is made, named and
filled in one transaction, and a crash before its end leaves nothing. If the server goes away in
the middle and comes back in time, the part is sent again, as far as its batches were kept.

COPY stops at the first row that the server does not take, and says nothing of the others. So after
such a failure the part is sent once more, each batch after a savepoint, and halved (``sql.rows``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from beadline.sink import Part, PrepareFailed, Reason, Retries, reach, running
from beadline.sinks.postgres.connect import PostgresAddress, RunStatement, literal
from beadline.sinks.postgres.discard import discard
from beadline.sinks.postgres.ledger import PostgresLedger
from beadline.sinks.postgres.part import (
    NOT_KEPT,
    PREPARED,
    STAGED,
    PostgresPart,
    global_id,
    new_nonce,
    stage_name,
)
from beadline.sinks.postgres.plan import (
    PostgresSettings,
    exact_key,
    plan_of,
    staged_checks,
    why_staged,
)
from beadline.sinks.postgres.problems import (
    OUT_OF_MEMORY,
    is_database_error,
    is_misfit,
    said,
    sql_state,
    verdict,
    why_refused,
)
from beadline.sinks.postgres.table import PostgresTable, read_table
from beadline.sinks.shared.sql.dialect import quoted
from beadline.sinks.shared.sql.errors import key_twice_in_part
from beadline.sinks.shared.sql.modes import duplicates
from beadline.sinks.shared.sql.rows import KEPT_BYTES_MAX, ResendableRows

if TYPE_CHECKING:
    import pyarrow as pa

_SAVEPOINT = "beadline"


class Preparing:
    """One call of ``prepare``: tries, until the part is there or the time is up."""

    def __init__(
        self,
        server: PostgresAddress,
        settings: PostgresSettings,
        rows: Iterator[pa.RecordBatch],
        part: Part,
    ) -> None:
        self._server = server
        self._settings = settings
        self._part = part
        self._batches: Iterator[pa.RecordBatch] = (batch for batch in rows if batch.num_rows)
        self._rows: ResendableRows | None = None
        self._no_slot = False
        self._careful = False
        self._begun: PostgresPart | None = None
        self._got = -1
        self._retries = Retries(running(server.timeout_s))

    def run(self) -> PostgresPart | None:
        """Retry after every error that may pass."""
        first = next(self._batches, None)
        if first is None:
            return None
        self._batches = chain((first,), self._batches)
        while True:
            try:
                return self._try(first.schema)
            except BaseException as error:
                if self._rows is not None and self._rows.failure is not None:
                    raise self._rows.failure from None
                if not is_database_error(error):
                    raise
                if not self._again(error):
                    raise self._failed(error) from None

    def _again(self, error: BaseException) -> bool:
        if self._rows is not None and not self._rows.restartable:
            return False
        if is_misfit(error):
            looked, self._careful = self._careful, True
            return not looked
        if sql_state(error) == OUT_OF_MEMORY and self._begun and self._begun.how == PREPARED:
            self._no_slot = True  # then in a staging table, unless that is not wanted
            return self._settings.how == "auto"
        return self._wait(error)

    def _wait(self, error: BaseException) -> bool:
        """Whether there is time for another try, counted from when the server went away.

        If the last try got further than the one before, it has gone away again since.
        """
        got = 0 if self._rows is None else self._rows.batches
        if got > self._got:
            self._got = got
            self._retries.progressed()
        return self._retries.again(verdict(error))

    def _try(self, schema: pa.Schema) -> PostgresPart | None:
        settings, id_ = self._settings, self._part.id
        if self._begun is not None:
            # The last try may have got as far as that, and its answer was lost.
            with self._server.connected() as plain:
                discard(plain, [self._begun])
        with self._server.arrow_connected() as (cursor, run):
            run("BEGIN")
            found = read_table(run, settings.schema, settings.table)
            table, plan = plan_of(settings, schema, found)
            if self._rows is None:
                taken = plan.taken(self._batches, self._part)
                self._rows = ResendableRows(plan, taken, self._part)
            rows = self._rows
            staged = self._no_slot or why_staged(settings, table, table.used_prepared) is not None
            nonce = new_nonce()
            name = stage_name(id_, nonce) if staged else global_id(id_, nonce)
            begun = PostgresPart(PREPARED, table.schema, name)
            if staged:
                kept = (settings.mode, settings.key, settings.deleted)
                begun = PostgresPart(STAGED, table.schema, name, *kept)
            self._begun = begun
            if staged:
                self._stage(run, begun, rows, staged_checks(settings, schema, table))
            self._copy(cursor, run, begun, rows, table)
            if not rows.count:
                run("ROLLBACK")
                return None
            if staged:
                self._check_keys(run, begun, rows, exact_key(settings, schema, table))
            else:
                PostgresLedger(run, table.schema, table.target).mark(id_, begun.name)
            reach("staging.written")
            run("COMMIT" if staged else f"PREPARE TRANSACTION {literal(begun.name)}")
            return begun

    def _stage(
        self, run: RunStatement, begun: PostgresPart, rows: ResendableRows, checks: tuple[str, ...]
    ) -> None:
        columns, name = rows.plan.columns, quoted(begun.schema, begun.name)
        definitions = [*(each.column.definition for each in columns), *checks]
        run(f"CREATE TABLE {name} ({', '.join(definitions)})")
        run(f"COMMENT ON TABLE {name} IS {literal(str(self._part.id))}")
        for column in columns:
            if not column.in_table:
                place = f"{name}.{quoted(column.name)}"
                run(f"COMMENT ON COLUMN {place} IS {literal(NOT_KEPT)}")

    def _copy(
        self,
        cursor: Any,
        run: RunStatement,
        begun: PostgresPart,
        rows: ResendableRows,
        table: PostgresTable,
    ) -> None:
        """Everything in one COPY, as it is read; or batch by batch, where a row is at fault."""
        import pyarrow as pa

        target = begun.name if begun.how == STAGED else table.name

        def send(data: pa.RecordBatch | pa.RecordBatchReader) -> None:
            cursor.adbc_ingest(target, data, mode="append", db_schema_name=begun.schema)

        def try_to_send(batch: pa.RecordBatch) -> str | None:
            run(f"SAVEPOINT {_SAVEPOINT}")
            why = None
            try:
                send(rows.plan.sent(batch))
            except Exception as error:
                if not is_misfit(error):
                    raise
                # The name of a staging table says nothing, and another attempt has another one.
                whole = why_refused(error, self._server.dsn)
                why = Reason(*(each.replace(target, table.name) for each in (whole, whole.shown)))
                run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            return why

        if self._careful:
            rows.send_each(try_to_send)
            return
        batches = rows.sent()
        first = next(batches, None)
        if first is not None:
            send(pa.RecordBatchReader.from_batches(first.schema, chain((first,), batches)))

    def _check_keys(
        self, run: RunStatement, begun: PostgresPart, rows: ResendableRows, exact: tuple[str, ...]
    ) -> None:
        """Raise if the part itself holds a key twice, and nothing says which row counts."""
        if self._settings.mode != "upsert" or rows.all_differ_in(exact):
            return
        if run(duplicates(self._settings, [quoted(begun.schema, begun.name)])):
            raise key_twice_in_part(self._settings, self._part.id)

    def _failed(self, error: BaseException) -> PrepareFailed:
        id_ = self._part.id
        advice = "It will be redelivered."
        if self._no_slot:
            advice = "Raise max_prepared_transactions, or set how= to 'auto' or 'staged'."
        elif is_misfit(error) and not self._careful:
            advice = (
                "A row is at fault, and it was not looked for, because more than "
                f"{KEPT_BYTES_MAX >> 20} MiB of the part had been sent. Repartition into smaller "
                "parts, and it is found and refused; or repair it in rows=."
            )
        return PrepareFailed(
            f"query {id_.query!r}, epoch {id_.epoch}, part {id_.partition}: {self._settings.where} "
            f"did not take the rows: {said(error, self._server.dsn)}. Nothing of the epoch was "
            f"decided. {advice}"
        )
