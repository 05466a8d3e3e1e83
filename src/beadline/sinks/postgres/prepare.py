"""Prepare: a part's rows by binary COPY, into a transaction that is prepared or a staging table.

Either all of a part is there under its name, or nothing is: a staging table is made, named and
filled in one transaction, and a crash before its end leaves nothing. If the server goes away in
the middle and comes back in time, the part is sent again, as far as its batches were kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from beadline.errors import PrepareFailed
from beadline.points import reach
from beadline.sink import Part
from beadline.sinks.postgres.connect import Run, arrow_connected, connected
from beadline.sinks.postgres.copying import Copying, chained
from beadline.sinks.postgres.discard import discard
from beadline.sinks.postgres.ledger import Ledger
from beadline.sinks.postgres.names import literal, quoted
from beadline.sinks.postgres.part import (
    NOT_KEPT,
    PREPARED,
    STAGED,
    PostgresPart,
    global_id,
    new_nonce,
    stage_name,
)
from beadline.sinks.postgres.plan import plan_of
from beadline.sinks.postgres.problems import (
    OUT_OF_MEMORY,
    is_database_error,
    is_misfit,
    said,
    sql_state,
    verdict,
)
from beadline.sinks.postgres.rows import KEPT_BYTES_MAX, Rows
from beadline.sinks.postgres.settle import duplicate_in_part
from beadline.sinks.postgres.table import read_table
from beadline.sinks.postgres.way import why_staged
from beadline.sinks.shared.retry import Retries, running

if TYPE_CHECKING:
    import pyarrow as pa

    from beadline.sinks.postgres.sink import PostgresSink


class Preparing:
    """One call of ``prepare``: tries, until the part is there or the time is up."""

    def __init__(
        self, sink: PostgresSink, first: pa.RecordBatch, rows: Iterator[pa.RecordBatch], part: Part
    ) -> None:
        self.sink = sink
        self.part = part
        self.rows: Rows | None = None
        self.no_slot = False
        self.careful = False
        self._schema = first.schema
        self._batches = chained(first, rows)
        self._begun: PostgresPart | None = None
        self._got = -1
        self._retries = Retries(running(sink.timeout_s))

    def run(self) -> PostgresPart | None:
        """Try again after every answer that may be another one later."""
        while True:
            try:
                return self._try()
            except BaseException as error:
                if self.rows is not None and self.rows.failure is not None:
                    raise self.rows.failure from None
                if not is_database_error(error):
                    raise
                if not self._again(error):
                    raise self._failed(error) from None

    def _again(self, error: BaseException) -> bool:
        if self.rows is not None and not self.rows.restartable:
            return False
        if is_misfit(error):
            looked, self.careful = self.careful, True
            return not looked
        if sql_state(error) == OUT_OF_MEMORY and self._begun and self._begun.way == PREPARED:
            self.no_slot = True  # then in a staging table, unless that is not wanted
            return self.sink.how == "auto"
        return self._wait(error)

    def _wait(self, error: BaseException) -> bool:
        """Whether there is time for another try; it runs from when the server went away.

        It went away anew if the last try got further than the one before.
        """
        got = 0 if self.rows is None else self.rows.batches
        if got > self._got:
            self._got = got
            self._retries.progressed()
        return self._retries.again(verdict(error))

    def _try(self) -> PostgresPart | None:
        sink, id_ = self.sink, self.part.id
        if self._begun is not None:
            # The last try may have got as far as that, and nobody was told of it.
            with connected(sink.dsn, sink.timeout_s) as plain:
                discard(plain, [self._begun])
        with arrow_connected(sink.dsn, sink.timeout_s) as (cursor, run):
            run("BEGIN")
            table = read_table(run, sink.schema, sink.table)
            plan = plan_of(sink, self._schema, table)
            assert table is not None
            if self.rows is None:
                self.rows = Rows(plan, self._batches, self.part)
            staged = self.no_slot or why_staged(sink, table, table.used_prepared) is not None
            nonce = new_nonce()
            name = stage_name(id_, nonce) if staged else global_id(id_, nonce)
            begun = PostgresPart(STAGED if staged else PREPARED, table.schema, name)
            self._begun = begun
            if staged:
                self._stage(run, begun)
            place = begun.name if staged else table.name
            copying = Copying(cursor, run, begun.schema, place, table.name, sink.dsn)
            (copying.carefully if self.careful else copying.all)(self.rows)
            if not self.rows.count:
                run("ROLLBACK")
                return None
            if staged and sink.mode == "upsert" and not self.rows.no_key_twice():
                duplicate_in_part(run, sink, id_, quoted(begun.schema, begun.name))
            if not staged:
                Ledger(run, table.schema, table.target).mark(id_, begun.name)
            reach("staging.written")
            run("COMMIT" if staged else f"PREPARE TRANSACTION {literal(begun.name)}")
            return begun

    def _stage(self, run: Run, begun: PostgresPart) -> None:
        assert self.rows is not None
        plan, name = self.rows.plan, quoted(begun.schema, begun.name)
        definitions = [*(column.definition for column in plan.columns), *plan.checks]
        run(f"CREATE TABLE {name} ({', '.join(definitions)})")
        run(f"COMMENT ON TABLE {name} IS {literal(str(self.part.id))}")
        for column in plan.columns:
            if not column.in_table:
                place = f"{name}.{quoted(column.name)}"
                run(f"COMMENT ON COLUMN {place} IS {literal(NOT_KEPT)}")

    def _failed(self, error: BaseException) -> PrepareFailed:
        id_ = self.part.id
        advice = "It will be redelivered."
        if self.no_slot:
            advice = "Raise max_prepared_transactions, or let how= be 'auto' or 'staged'."
        elif is_misfit(error) and not self.careful:
            advice = (
                "A row is at fault, and it was not looked for, because more than "
                f"{KEPT_BYTES_MAX >> 20} MiB of the part had been sent. Repartition into smaller "
                "parts, and it is found and refused; or repair it in rows=."
            )
        return PrepareFailed(
            f"query {id_.query!r}, epoch {id_.epoch}, part {id_.partition}: {self.sink.where} did "
            f"not take the rows: {said(error, self.sink.dsn)}. Nothing of the epoch was decided. "
            f"{advice}"
        )
