"""Staging tables: a part's rows, durable and invisible, in a table of their own.

DDL commits by itself, so nothing else can be in one transaction with it. The table therefore
identifies its part itself: its comment, made in the same statement, is the part's id. No crash
leaves a table that cannot be found, or a note of a table that is not there.

Every chunk is a transaction of its own and rows are numbered, so a chunk whose answer was lost is
sent again: what is there already is skipped by its number, whichever copy comes first.

At commit all rows and the ledger row are one transaction, or nothing. The table is read from before
its columns are checked: from then on it cannot be altered until the transaction ends, so that what
was checked is what is written to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from beadline.sink import (
    BeadlineError,
    CommitResult,
    EpochId,
    Outcome,
    Part,
    PartId,
    Prepared,
    PrepareFailed,
    QueryId,
    reach,
)
from beadline.sinks.mysql.columns import MYSQL, ROW, MySqlColumn, keeps, quoted
from beadline.sinks.mysql.connection import Connection, MySqlServer
from beadline.sinks.mysql.ledger import MySqlLedger
from beadline.sinks.mysql.loading import Loader, Misfit, PartWriter, chunks_of
from beadline.sinks.mysql.modes import Merge
from beadline.sinks.mysql.part import STAGE, MySqlPart, MySqlParts, stage_name
from beadline.sinks.mysql.plan import MySqlSettings
from beadline.sinks.mysql.problems import (
    BAD_VALUE,
    CONSTRAINT,
    DENIED,
    LOCKED,
    MISSING_TABLE,
    code_of,
    library_errors,
    retried,
    said,
)
from beadline.sinks.mysql.table import read_table
from beadline.sinks.shared.sql.errors import (
    check_altered,
    check_staged,
    key_twice_in_epoch,
    key_twice_in_part,
    row_refused,
)
from beadline.sinks.shared.sql.modes import duplicates
from beadline.sinks.shared.sql.plan import TablePlan
from beadline.sinks.shared.sql.rows import misfits, refuse_rows
from beadline.sinks.shared.sql.stages import WhyKept, drop_stages

if TYPE_CHECKING:
    import pyarrow as pa

StagedColumns = dict[str, dict[str, str]]  # of each staging table: its columns, and their use
_COLUMNS = """SELECT TABLE_NAME, COLUMN_NAME, COLUMN_COMMENT FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({}) ORDER BY ORDINAL_POSITION"""
_TYPES = """SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({})"""
_STAGES = """SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES
    WHERE TABLE_NAME LIKE '{}%'"""
_DROP_LOCK_WAIT_S = 1  # the least that MySQL takes


class StagedWriter(PartWriter):
    """Writes one part into its staging table."""

    def __init__(
        self, server: MySqlServer, settings: MySqlSettings, plan: TablePlan[MySqlColumn], part: Part
    ) -> None:
        super().__init__(server, settings, plan, part)
        self._name = stage_name(part.id)
        self._connection: Connection | None = None
        self._loader: Loader | None = None
        self._made = False
        self._repeated = False
        self._sent = self._kept = 0

    def write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        """Stage the rows. It begins on this connection, and continues on others if it is lost."""
        self._connection = connection
        try:
            for chunk in chunks_of(batches):
                refuse_rows(self._part, chunk, misfits(chunk, self._stage))
            if not self._kept:
                self.discard()
                return None
            self._prove()
        except Exception:
            self.discard()
            raise
        finally:
            self._close()
        reach("staging.written")
        settings = self._settings
        staged = (settings.mode, settings.key, settings.deleted)
        return MySqlPart("staged", self._name, self._kept, *staged)

    def discard(self) -> None:
        """Drop the table, if the server lets us; otherwise a sweep finds it."""
        if not self._made:
            return
        try:
            drop(self._open(), [self._name])
        except library_errors():
            self._close()

    def _stage(self, chunk: pa.RecordBatch) -> str | None:
        """Stage the rows of a chunk; return why the server does not take them."""
        first = self._sent
        try:
            self._retried(lambda: self._transact(chunk, first))
        except Misfit as misfit:
            return self._why(Misfit(*map(self._without_stage, misfit.args)))
        self._sent += chunk.num_rows
        self._kept += chunk.num_rows
        return None

    def _transact(self, chunk: pa.RecordBatch, first: int) -> None:
        connection = self._open()
        if not self._made:
            again = "IF NOT EXISTS " if self._repeated else ""
            connection.run(_create(self._name, self._part.id, self._columns, again))
            self._made = True
        if self._loader is None:
            self._loader = Loader(connection, self._name, self._columns, numbered=True)
        connection.run("START TRANSACTION")
        try:
            taken = self._load(self._loader, chunk, first)
        except Misfit:
            connection.run("ROLLBACK")
            raise
        connection.commit()
        if taken != chunk.num_rows and not self._repeated:
            raise self._too_few(taken, chunk)

    def _prove(self) -> None:
        """Count what was sent more than once, and look for what must not be there."""
        if self._repeated:
            count = f"SELECT COUNT(*) FROM {quoted(self._name)}"
            ((found,),) = self._retried(lambda: self._open().ask(count))
            if found != self._kept:
                raise PrepareFailed(
                    f"{self._about}: {found} rows are there, {self._kept} were sent"
                )
        if self._settings.mode == "upsert":
            query = duplicates(self._settings, [quoted(self._name)])
            if self._retried(lambda: self._open().ask(query)):
                raise key_twice_in_part(self._settings, self._part.id)

    def _without_stage(self, text: str) -> str:
        """A reason without the name of this attempt's table: a replay must give the same one."""
        whole = f"{quoted(self._server.address.database)}.{quoted(self._name)}"
        for name in (f"{whole}.", f" for {whole}", f"{self._name}.", self._name):
            text = text.replace(name, "")
        return text

    def _retried(self, act: Any) -> Any:
        """Retry on new connections until the server is back; say which part if it is not."""

        def once() -> Any:
            try:
                return act()
            except library_errors():
                self._close()
                self._repeated = True
                raise

        try:
            return retried(once, self._server.timeout_s)
        except library_errors() as error:
            if self._made and code_of(error) in MISSING_TABLE:
                why = (
                    "its staging table was swept while it was written: this attempt must not "
                    "continue"
                )
            else:
                why = said(error, self._server.address)
            raise PrepareFailed(f"{self._about}: {why}") from None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._server.connect()
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._loader = None


def _create(name: str, id_: PartId, columns: Sequence[MySqlColumn], again: str) -> str:
    definitions = [f"{quoted(ROW)} BIGINT NOT NULL PRIMARY KEY"]
    definitions += [column.definition for column in columns]
    return (
        f"CREATE TABLE {again}{quoted(name)} ({', '.join(definitions)}) "
        f"ENGINE = InnoDB COMMENT = '{id_}'"
    )


def staged_in_doubt(connection: Connection, query: QueryId) -> Iterable[Prepared[MySqlPart]]:
    """Every staging table of this query on the server; what else has such a name is skipped.

    In every database that this user sees: a sink that was moved to another leaves some behind,
    which nobody else may look for (rule 27). So their names are given with the database's.
    """
    pattern = STAGE.replace("_", r"\_")
    for row in connection.ask(_STAGES.format(pattern)):
        database, name, comment = map(_text, row)
        id_ = PartId.parse(comment)
        if id_ is not None and id_.belongs_to(query) and name == stage_name(id_):
            yield Prepared(id_, 0, MySqlPart("staged", f"{database}.{name}", 0))


def drop(connection: Connection, names: Sequence[str]) -> None:
    """Drop staging tables; afterwards this connection waits as briefly for every other lock."""
    if any(not name.rpartition(".")[2].startswith(STAGE) for name in names):
        raise BeadlineError(f"not a staging table: {names}")
    if not names:
        return
    connection.run(f"SET SESSION lock_wait_timeout = {_DROP_LOCK_WAIT_S}")

    def drop_all(some: Sequence[str]) -> WhyKept | None:
        try:
            connection.run(f"DROP TABLE IF EXISTS {', '.join(map(_place, some))}")
        except library_errors() as error:
            if code_of(error) not in LOCKED | DENIED:
                raise
            return "denied" if code_of(error) in DENIED else "locked"
        return None

    drop_stages(names, drop_all, at_once=len(names))


def _place(name: str) -> str:
    """Return a staging table's name for a statement; the name of its database may hold dots.

    >>> _place("shop._beadline_stage_1"), _place("_beadline_stage_1")
    ('`shop`.`_beadline_stage_1`', '`_beadline_stage_1`')
    """
    database, _, table = name.rpartition(".")
    return quoted(database, table) if database else quoted(table)


def commit_staged(
    server: MySqlServer,
    connection: Connection,
    settings: MySqlSettings,
    epoch: EpochId,
    parts: MySqlParts,
) -> CommitResult:
    """Closing the connection with the transaction open rolls everything back."""
    parts = sorted(parts, key=lambda part: part.id.partition)
    ledger = MySqlLedger(connection, epoch.query, settings.table, parts[0].id.sink)
    connection.run("START TRANSACTION")
    ledger.lock()
    if ledger.holds(epoch, settings.where):
        connection.run("ROLLBACK")
        return CommitResult.all(parts, Outcome.ALREADY_COMMITTED)
    columns = _columns(connection, [part.committable.name for part in parts])
    damage = _damage(connection, parts, columns, count=settings.mode != "append")
    if not damage:
        check_staged(settings, parts)
        _check_types(connection, settings, epoch, parts, columns)
        _check_keys(connection, settings, epoch, parts)
        merge = Merge(settings, _written(columns), _never_null(connection, settings))
        damage = _merge(server, connection, merge, epoch, parts)
    if damage:
        # The ledger is behind, so no part of the epoch is there: all are lost, not some.
        connection.run("ROLLBACK")
        return CommitResult(CommitResult.all(parts, Outcome.LOST).outcomes, damage)
    ledger.write(epoch, sum(part.committable.rows for part in parts))
    reach("ledger.before")
    connection.commit()
    reach("ledger.after")
    return CommitResult.all(parts, Outcome.COMMITTED)


def _columns(connection: Connection, stages: Sequence[str]) -> StagedColumns:
    """The columns of staging tables, and which are not to be written; empty if gone."""
    marks = ", ".join(["%s"] * len(stages))
    found: StagedColumns = defaultdict(dict)
    for stage, column, use in connection.ask(_COLUMNS.format(marks), stages):
        if column != ROW:
            found[str(stage)][str(column)] = str(use)
    return found


def _damage(
    connection: Connection, parts: MySqlParts, columns: StagedColumns, *, count: bool
) -> str:
    """Say which parts are gone or not as they were staged; empty if none is."""
    problems = []
    for part in parts:
        if part.committable.name not in columns:
            problems.append(_gone(part, "is gone"))
        elif count:
            ((there,),) = connection.ask(f"SELECT COUNT(*) FROM {quoted(part.committable.name)}")
            if there != part.committable.rows:
                problems.append(_gone(part, f"has {there} rows of {part.committable.rows}"))
    return "; ".join(problems)


def _gone(part: Prepared[MySqlPart], what: str) -> str:
    return f"part {part.id.partition}: staging table {part.committable.name} {what}"


def _written(columns: StagedColumns) -> tuple[str, ...]:
    """Everything that was staged to be written, whatever the table looks like now.

    A column that it has lost since is an error of the server's: its values must not vanish.
    """
    names = [name for staged in columns.values() for name, use in staged.items() if not use]
    return tuple(dict.fromkeys(names))


def _never_null(connection: Connection, settings: MySqlSettings) -> frozenset[str]:
    if settings.mode != "add":
        return frozenset()
    columns = connection.ask(f"SHOW COLUMNS FROM {quoted(settings.table)}")
    return frozenset(MYSQL.fold(str(name)) for name, _, nullable, *_ in columns if nullable == "NO")


def _check_types(
    connection: Connection,
    settings: MySqlSettings,
    epoch: EpochId,
    parts: MySqlParts,
    columns: StagedColumns,
) -> None:
    """A column that was altered since a part was staged must still take its values as they are."""
    connection.ask(
        f"SELECT 1 FROM {quoted(settings.table)} LIMIT 0"
    )  # from here on it stays as it is
    now = {column: type_ for _, column, type_ in _types(connection, [settings.table])}
    altered = defaultdict(list)
    for stage, column, type_ in _types(connection, [part.committable.name for part in parts]):
        kept = any(MYSQL.fold(name) == column and not use for name, use in columns[stage].items())
        if kept and now.get(column, type_) != type_:  # the server reports a dropped column
            altered[stage].append(column)
    for part in parts:
        stage = part.committable.name
        if stage in altered:
            was, is_ = (read_table(connection, name) for name in (stage, settings.table))
            check_altered(settings, epoch, part.id, altered[stage], was, is_, keeps)


def _types(connection: Connection, tables: Sequence[str]) -> list[tuple[str, str, tuple[str, str]]]:
    """Table, column and type of all columns of these tables."""
    marks = ", ".join(["%s"] * len(tables))
    return [
        (str(table), MYSQL.fold(str(column)), (_text(type_), _text(character_set)))
        for table, column, type_, character_set in connection.ask(_TYPES.format(marks), tables)
    ]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_keys(
    connection: Connection, settings: MySqlSettings, epoch: EpochId, parts: MySqlParts
) -> None:
    """Two parts may hold one key, which neither of them could know."""
    if settings.mode != "upsert":
        return
    # Of one part too: it may have been staged with another order_by.
    stages = [part.committable.name for part in parts]
    if connection.ask(duplicates(settings, list(map(quoted, stages)))):
        raise key_twice_in_epoch(settings, epoch, parts[0].id.sink, stages)


def _merge(
    server: MySqlServer, connection: Connection, merge: Merge, epoch: EpochId, parts: MySqlParts
) -> str:
    """Run the statements; what is appended is counted by that, and a wrong count is returned."""
    by_stage = {part.committable.name: part for part in parts}
    for statement, stages in merge.statements(list(by_stage)):
        try:
            taken = connection.run(statement)
        except library_errors() as error:
            if code_of(error) not in CONSTRAINT | BAD_VALUE:
                raise
            why, at_fault = said(error, server.address), [by_stage[stage] for stage in stages]
            raise row_refused(merge.settings, epoch, at_fault, stages, why) from None
        part = by_stage[stages[0]]
        if merge.settings.mode == "append" and taken != part.committable.rows:
            return _gone(part, f"has {taken} rows of {part.committable.rows}")
    return ""
