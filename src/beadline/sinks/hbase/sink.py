"""``HBaseSink``: an epoch's rows as puts and deletes under the time of its decision.

HBase has no transaction over rows, so parts are staged as files (``StagedSink``) and written at
commit. What makes that happen once is time: each cell's version is the moment at which its epoch
was decided, which is in the decision's record. A replay writes the same versions again; a commit
that comes late writes versions that newer ones hide (``changes`` says why that is always so).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from beadline.sink import (
    LEDGER,
    NOTHING_WRITTEN,
    BadSink,
    Capabilities,
    CommitBlocked,
    CommitFailed,
    Denied,
    Guarantee,
    Outcome,
    Part,
    PartsDamaged,
    QueryId,
    Rejected,
    Seen,
    StagedEpoch,
    StagedPart,
    StagedSink,
    Unavailable,
    Verdict,
    check_writable,
    folders_in,
    local_folder,
    name_from,
    reach,
    running,
    starting,
    way_out,
)
from beadline.sinks.hbase.changes import last_changes
from beadline.sinks.hbase.client import HBaseClient, ThriftServer, asked, connected
from beadline.sinks.hbase.columns import (
    TABLE,
    Cells,
    cells_of,
    check_columns,
    check_table,
)
from beadline.sinks.hbase.encode import Encoding, encode
from beadline.sinks.hbase.ledger import HBaseLedger
from beadline.sinks.hbase.refused import without_refused
from beadline.sinks.hbase.write import EpochWriter, HBaseRowRejected

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_ONCE = (
    "Each row takes effect once: its cells carry the time of its epoch's decision, so a repeated "
    "write is the same version and a late one is hidden by newer ones; readers may see an epoch "
    "that is half written. HBase counts a write as safe when its data nodes have it in memory; "
    "against a power cut that takes all of them, set hbase.wal.hsync to true."
)
_DELETES = (
    " A row with a null, or one that is deleted and put again, may for a moment show new cells "
    "beside old ones, as puts and deletes are two writes. Deletes hold against late writes until a "
    "compaction drops their markers: deleted values could reappear if a write that had checked the "
    "ledger earlier arrives only then; with "
    "hbase.hstore.time.to.purge.deletes at an hour it cannot."
)


@dataclass(frozen=True)
class HBaseSink(StagedSink):
    """Rows into a table of HBase, through its Thrift server; the table must exist.

    The row with the same ``row_key`` is replaced, column by column: a null removes its cell. If an
    epoch holds a key twice, the last row wins, in the order of parts and of the rows in each. Every
    other column goes to ``family``, under its own name, or ``columns`` says which go where:
    ``{"total": "f:total"}``. Where the boolean column ``deleted`` is true, the whole row is
    deleted.

    ``encoding`` says how values become bytes: ``text``, or ``bytes`` as HBase's ``Bytes.toBytes``.
    Rejected at prepare, so that a dead-letter sink can take them: a null, empty or overlong key,
    null in ``deleted``, a cell above ``cell_bytes_max``, as text a date outside the years 0 to
    9999.

    ``staging`` is a folder that driver and executors share. ``timeout_s`` is how long one answer of
    the server may take; ``connections`` are used at once at commit.

    >>> HBaseSink("h", table="orders", row_key="id", family="f", staging="/tmp").default_name
    'hbase-orders'
    """

    host: str
    _: KW_ONLY
    table: str
    row_key: str
    staging: str | os.PathLike[str]
    family: str | None = None
    columns: Mapping[str, str] | None = None
    deleted: str | None = None
    port: int = 9090
    encoding: Encoding = "text"
    timeout_s: float = 30.0
    connections: int = 4
    cell_bytes_max: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        """Make the folder absolute, as executors work in others; refuse invalid settings."""
        object.__setattr__(self, "staging", local_folder("staging", self.staging))
        if not self.host or not isinstance(self.host, str):
            raise BadSink(
                f"host {self.host!r} is not the name of a Thrift server. {NOTHING_WRITTEN}"
            )
        if not TABLE.match(self.table) or self.table.rpartition(":")[2] == LEDGER:
            raise BadSink(f"{self.table!r} cannot name the table of a sink. {NOTHING_WRITTEN}")
        if (self.family is None) == (self.columns is None):
            raise BadSink(
                f"{self.target_name}: give family='f' for all columns, or columns={{'column': "
                f"'family:qualifier'}} for some, and not both. {NOTHING_WRITTEN}"
            )
        if self.encoding not in ("text", "bytes"):
            raise BadSink(f"encoding {self.encoding!r} is not 'text' or 'bytes'. {NOTHING_WRITTEN}")
        if self.timeout_s <= 0 or self.connections < 1 or self.cell_bytes_max < 1:
            raise BadSink(
                f"{self.target_name}: timeout_s, connections and cell_bytes_max must be above 0. "
                f"{NOTHING_WRITTEN}"
            )
        if self.deleted is not None and self.deleted in (self.row_key, *(self.columns or ())):
            raise BadSink(
                f"{self.target_name}: column {self.deleted!r} cannot mark deletes and be stored "
                f"too. {NOTHING_WRITTEN}"
            )

    @property
    def default_name(self) -> str:
        """The table."""
        return name_from("hbase", self.table.replace(":", "-"))

    @property
    def target_name(self) -> str:
        """The table and the Thrift server."""
        return f"HBase table {self.table!r} at {self.host}:{self.port}"

    @property
    def _server(self) -> ThriftServer:
        return ThriftServer(self.host, self.port, self.timeout_s)

    @property
    def staging_folder(self) -> str:
        """Not by the server's address: another Thrift server of the same HBase finds it too."""
        return str(Path(self.staging) / name_from("hbase", self.table))

    @property
    def staging_folders(self) -> Iterable[str]:
        """Those of other tables, in the same ``staging``."""
        return folders_in(f"file:{self.staging}", "hbase-")

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        """Which cells the columns become, and in which form."""
        return self._cells(schema.names).settings

    def _cells(self, names: list[str]) -> Cells:
        return cells_of(
            names,
            self.row_key,
            self.family,
            self.columns,
            self.deleted,
            self.encoding,
            self.target_name,
        )

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Is the server there, with the table and its families, and do the columns fit?"""
        cells = self._cells(schema.names)
        check_columns(schema, cells, self.target_name)
        check_writable("staging", str(self.staging), self.target_name)

        def look(client: HBaseClient) -> str:
            check_table(client, self.table, cells, self.target_name)
            HBaseLedger(self.table).check(client, self.target_name)
            return client.cluster_id() or str(self._server)

        cluster = self._asked(look, "it cannot be used.", starting(self.timeout_s))
        deletes = self.deleted is not None or any(
            schema.field(name).nullable for name in cells.targets
        )
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence=_ONCE + (_DELETES if deletes else ""),
            target=f"hbase:{cluster}#{self.table}",
            shared_disk=True,
            remembers=True,
            columns=None if self.columns is None else cells.columns,
            start_over=f"empty the table, then {HBaseLedger(self.table).start_over(query)}, and "
            f"delete {self.staging_area.pattern(query)}",
        )

    def open(self, query: QueryId, name: str) -> None:
        """Make the ledger table, in the namespace of the table, if it is missing."""
        ledger = HBaseLedger(self.table)
        self._asked(
            ledger.make,
            "the ledger table cannot be made. Make it in the HBase shell: "
            f"create '{ledger.table}', 'f'.",
        )

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; what HBase would not take is refused, while nothing is decided."""
        return self.stage((self._kept(batch, part) for batch in rows), part)

    def _kept(self, batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        cells = self._cells(batch.schema.names)
        kept = without_refused(batch, cells, self.table, self.cell_bytes_max, part)
        return kept.select(list(cells.columns))

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        """Write the last change of each key, and then the ledger row."""
        try:
            with connected(self._server) as client:
                return self._write_epoch(client, epoch)
        except HBaseRowRejected as error:
            raise self._rejected(self._row_with(error.key, epoch), error, epoch) from error
        except Rejected as error:
            raise self._rejected("it", error, epoch) from error

    def _write_epoch(self, client: HBaseClient, epoch: StagedEpoch) -> Outcome:
        ledger, query = HBaseLedger(self.table), epoch.id.query
        rows = ledger.read(client, query)
        if epoch.is_committed(rows.seen(epoch.id.number, epoch.sink)):
            return Outcome.ALREADY_COMMITTED
        # The last change of a key may be in another part, so none is written without all.
        batches = list(epoch.batches())
        cells = self._cells(batches[0].schema.names)
        families = list(client.families(self.table))
        # The writer looks at this sink's own row only, which may not be there yet.
        has_row = rows.written_by(epoch.sink) is not None
        id_ = epoch.id if has_row else replace(epoch.id, previous=-1)
        writer = EpochWriter(
            self._server, ledger, cells, families, id_, epoch.sink, self.connections
        )
        if not writer.write(client, last_changes(batches, cells)):
            return Outcome.ALREADY_COMMITTED
        reach("ledger.before")
        ledger.write(client, epoch.id, epoch.sink, epoch.rows)
        return Outcome.COMMITTED

    def _rejected(self, what: str, error: Rejected, epoch: StagedEpoch) -> CommitFailed:
        kind = CommitBlocked if isinstance(error, Denied) else CommitFailed
        # A right is given by a person: the start that is to give rows up anyway adds how.
        end = f" {way_out(epoch.sink, epoch.id.number)}" if kind is CommitFailed else ""
        return kind(
            f"{epoch}: {self.target_name} rejects {what}: {error}. The epoch is decided, and may "
            f"be visible in part. Repair the table; the next start finishes the epoch.{end}"
        )

    def _row_with(self, key: bytes, epoch: StagedEpoch) -> str:
        """Say where the row is that HBase was sent: the last one that has the key."""
        with suppress(PartsDamaged):
            for part in reversed(epoch.parts):
                row, first = -1, 0
                for batch in epoch.read(part):
                    cells = self._cells(batch.schema.names)
                    keys = encode(batch.column(cells.row_key), cells.encoding).to_pylist()
                    if key in keys:
                        row = first + len(keys) - 1 - keys[::-1].index(key)
                    first += len(keys)
                if row >= 0:
                    file = part.committable.file
                    return f"row {row} of part {part.id.partition} (the first is 0, in {file})"
        return "a row"

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the ledger holds for this table; another incarnation's row first."""
        ledger = HBaseLedger(self.table)
        return self._asked(
            lambda client: ledger.read(client, query).last_seen(name),
            f"the ledger table {ledger.table!r} cannot be read, so it is not known what the table "
            "holds. Repair it in the HBase shell: enable it, or give this user the right to read "
            "and write it.",
        )

    def _asked(
        self,
        question: Callable[[HBaseClient], T],
        problem: str,
        limits: Mapping[Verdict, float] | None = None,
    ) -> T:
        """Ask before anything is written; ``problem`` says what a refusal means."""
        try:
            return asked(self._server, question, limits or running(self.timeout_s))
        except Unavailable as error:
            raise BadSink(
                f"{self.target_name}: HBase's Thrift server at {self._server} does not answer: "
                f"{error}. Is it running ('hbase thrift start', the default transport and "
                f"protocol), and HBase behind it? {NOTHING_WRITTEN} Start again when it is up."
            ) from error
        except Rejected as error:
            said = f"{self.target_name}: {problem} HBase says: {error}"
            raise BadSink(f"{said}. {NOTHING_WRITTEN}") from error
