"""Prepare: a part's rows by binary COPY, into a transaction that is prepared or a staging table.

Either all of a part is there under its name, or nothing is: a staging table is made, named and
filled in one transaction, and a crash before its end leaves nothing. If the server goes away in
the middle and comes back in time, the part is sent again, as far as its batches were kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from beadline.chaos.points import reach
from beadline.errors import PrepareFailed
from beadline.sink import Part
from beadline.sinks.postgres.connect import (
    Run,
    arrow_connected,
    connected,
    is_database_error,
    is_transient,
    said,
    sql_state,
)
from beadline.sinks.postgres.discard import discard
from beadline.sinks.postgres.ledger import Ledger
from beadline.sinks.postgres.names import literal, quoted
from beadline.sinks.postgres.part import (
    PREPARED,
    STAGED,
    PostgresPart,
    global_id,
    new_nonce,
    stage_name,
)
from beadline.sinks.postgres.plan import Plan, plan_of
from beadline.sinks.postgres.settle import duplicate_in_part
from beadline.sinks.postgres.table import Table, read_table
from beadline.sinks.postgres.way import why_staged

if TYPE_CHECKING:
    import pyarrow as pa

    from beadline.sinks.postgres.sink import PostgresSink

KEPT_BYTES_MAX = 64 << 20
_BACK_OFF_S = 0.25
_NO_SLOT = "53200"  # out of memory, it says: the memory for prepared transactions


class _Rows:
    """The rows of a part as the table takes them, again from the start while they are kept.

    Batches are adapted once: a row that was refused is not refused again.
    """

    def __init__(self, plan: Plan, batches: Iterator[pa.RecordBatch], part: Part) -> None:
        self.plan = plan
        self.count = 0
        self.failure: BaseException | None = None
        self.restartable = True
        self._batches = batches
        self._part = part
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from list(self._kept)
        try:
            for batch in self._batches:
                adapted = self.plan.adapt(batch, self._part) if batch.num_rows else None
                if adapted is not None and adapted.num_rows:
                    self._keep(adapted)
                    yield adapted
        except BaseException as failure:
            # Through the client library it would come out as another error.
            self.failure = failure
            raise

    def _keep(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self._kept_bytes += batch.nbytes
        if self._kept_bytes <= KEPT_BYTES_MAX:
            self._kept.append(batch)
        else:
            self.restartable = False
            self._kept.clear()


class Preparing:
    """One call of ``prepare``: tries, until the part is there or the time is up."""

    def __init__(
        self, sink: PostgresSink, first: pa.RecordBatch, rows: Iterator[pa.RecordBatch], part: Part
    ) -> None:
        self.sink = sink
        self.part = part
        self.rows: _Rows | None = None
        self.no_slot = False
        self._schema = first.schema
        self._batches = _chained(first, rows)
        self._begun: PostgresPart | None = None

    def run(self) -> PostgresPart | None:
        """Try again after every answer that may be another one later."""
        deadline_s = time.monotonic() + self.sink.timeout_s
        while True:
            try:
                return self._try()
            except BaseException as error:
                if self.rows is not None and self.rows.failure is not None:
                    raise self.rows.failure from None
                if not is_database_error(error):
                    raise
                if not self._again(error, deadline_s):
                    raise self._failed(error) from None
            time.sleep(_BACK_OFF_S)

    def _again(self, error: BaseException, deadline_s: float) -> bool:
        if self.rows is not None and not self.rows.restartable:
            return False
        if sql_state(error) == _NO_SLOT and self._begun and self._begun.way == PREPARED:
            self.no_slot = True  # then in a staging table, unless that is not wanted
            return self.sink.how == "auto"
        return is_transient(error) and time.monotonic() < deadline_s

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
                self.rows = _Rows(plan, self._batches, self.part)
            staged = self.no_slot or why_staged(sink, table, table.used_prepared) is not None
            nonce = new_nonce()
            name = stage_name(id_, nonce) if staged else global_id(id_, nonce)
            begun = PostgresPart(STAGED if staged else PREPARED, table.schema, name)
            self._begun = begun
            if staged:
                self._stage(run, begun)
            self._copy(cursor, table, begun)
            if not self.rows.count:
                run("ROLLBACK")
                return None
            if staged:
                duplicate_in_part(run, sink, id_, quoted(begun.schema, begun.name))
            else:
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

    def _copy(self, cursor: Any, table: Table, begun: PostgresPart) -> None:
        import pyarrow as pa

        assert self.rows is not None
        batches = iter(self.rows)
        first = next(batches, None)
        if first is None:
            return
        name = begun.name if begun.way == STAGED else table.name
        reader = pa.RecordBatchReader.from_batches(first.schema, _chained(first, batches))
        cursor.adbc_ingest(name, reader, mode="append", db_schema_name=begun.schema)

    def _failed(self, error: BaseException) -> PrepareFailed:
        id_ = self.part.id
        advice = "It will be given again."
        if self.no_slot:
            advice = "Raise max_prepared_transactions, or let how= be 'auto' or 'staged'."
        return PrepareFailed(
            f"query {id_.query!r}, epoch {id_.epoch}, part {id_.partition}: {self.sink.where} did "
            f"not take the rows: {said(error, self.sink.dsn)}. Nothing of the epoch was decided. "
            f"{advice}"
        )


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others
