"""``HBaseSink``: an epoch's rows as puts and deletes under the time of its decision.

HBase has no transaction over rows, so parts are staged as files (``_staging``) and written at
commit. What makes that happen once is time: each cell's version is the moment at which its epoch
was decided, which is in the decision's record. A replay writes the same versions again; a commit
that comes late writes versions that newer ones hide (``changes`` says why that is always so).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from beadline.committable import Committable
from beadline.errors import BadSink
from beadline.files.local import local_path
from beadline.ids import EpochId, QueryId
from beadline.names import name_from
from beadline.sink import (
    LEDGER,
    Capabilities,
    CommitResult,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    Seen,
    Sink,
    StagedPart,
    Staging,
    folders_in,
)
from beadline.sinks.hbase.check import check_server, check_staging, unreachable
from beadline.sinks.hbase.client import Address, Refused, Unreachable, asked
from beadline.sinks.hbase.columns import NOTHING, TABLE, Cells, cells_of, check_columns
from beadline.sinks.hbase.commit import Commit
from beadline.sinks.hbase.encode import Encoding
from beadline.sinks.hbase.ledger import Ledger
from beadline.sinks.hbase.refused import limits_of, without_refused
from beadline.sinks.hbase.settings import noted
from beadline.sinks.shared.retry import running

if TYPE_CHECKING:
    import pyarrow as pa

_ONCE = (
    "Each row takes effect once: its cells carry the time of its epoch's decision, so a repeated "
    "write is the same version and a late one is hidden by newer ones; readers may see an epoch "
    "that is half written. HBase counts a write as safe when its data nodes have it in memory; "
    "against a power cut that takes all of them, set hbase.wal.hsync to true."
)
_DELETES = (
    " A row with a null, or one that is deleted and put again, may for a moment show new cells "
    "beside old ones, as puts and deletes are two writes. Deletes hold against late writes until a "
    "compaction drops their markers: what they hid would show again if an old write, looked up in "
    "the ledger before and on its way all that time, came then; with "
    "hbase.hstore.time.to.purge.deletes at an hour it cannot."
)


@dataclass(frozen=True)
class HBaseSink(Sink[StagedPart]):
    """Rows into a table of HBase, through its Thrift server; the table must exist.

    The row with the same ``row_key`` is replaced, column by column: a null removes its cell. If an
    epoch holds a key twice, the last row wins, in the order of parts and of the rows in each.
    Every other column goes to ``family``, under its own name, or ``columns`` says which go where:
    ``{"total": "f:total"}``. Where the boolean column ``deleted`` is true, the whole row goes.

    ``encoding`` says how values become bytes: ``text``, or ``bytes`` as HBase's ``Bytes.toBytes``.
    Refused at prepare, and so for a dead letter sink: a null, empty or overlong key, null in
    ``deleted``, a cell above ``cell_bytes_max``, as text a date outside the years 0 to 9999.

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

    committable: ClassVar[type[Committable]] = StagedPart

    def __post_init__(self) -> None:
        """Settle the folder here, as executors work in others; refuse what cannot be right."""
        staging = os.fspath(self.staging)
        folder = local_path(staging) if staging.startswith("file:") else staging
        if "://" in staging and not staging.startswith("file:"):
            Staging(staging)  # says that it must be local
        object.__setattr__(self, "staging", os.path.abspath(folder))
        if not self.host or not isinstance(self.host, str):
            raise BadSink(f"host {self.host!r} is not the name of a Thrift server. {NOTHING}")
        if not TABLE.match(self.table) or self.table.rpartition(":")[2] == LEDGER:
            raise BadSink(f"{self.table!r} cannot name the table of a sink. {NOTHING}")
        if (self.family is None) == (self.columns is None):
            raise BadSink(
                f"{self._where}: give family='f' for all columns, or columns={{'column': "
                f"'family:qualifier'}} for some, and not both. {NOTHING}"
            )
        if self.encoding not in ("text", "bytes"):
            raise BadSink(f"encoding {self.encoding!r} is not 'text' or 'bytes'. {NOTHING}")
        if self.timeout_s <= 0 or self.connections < 1 or self.cell_bytes_max < 1:
            raise BadSink(
                f"{self._where}: timeout_s, connections and cell_bytes_max must be above 0. "
                f"{NOTHING}"
            )
        if self.deleted is not None and self.deleted in (self.row_key, *(self.columns or ())):
            raise BadSink(
                f"{self._where}: column {self.deleted!r} cannot mark deletes and be stored too. "
                f"{NOTHING}"
            )

    @property
    def default_name(self) -> str:
        """The table."""
        return name_from("hbase", self.table.replace(":", "-"))

    @property
    def _where(self) -> str:
        return f"HBase table {self.table!r} at {self.host}:{self.port}"

    @property
    def _address(self) -> Address:
        return Address(self.host, self.port, self.timeout_s)

    @property
    def _staging(self) -> Staging:
        # Not by the server's address: another Thrift server of the same HBase finds it too.
        return Staging(f"file:{Path(self.staging) / name_from('hbase', self.table)}")

    def _cells(self, names: list[str]) -> Cells:
        return cells_of(
            names,
            self.row_key,
            self.family,
            self.columns,
            self.deleted,
            self.encoding,
            self._where,
        )

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Is the server there, with the table and its families, and do the columns fit?"""
        cells = self._cells(schema.names)
        check_columns(schema, cells, self._where)
        check_staging(str(self.staging), self._where)
        cluster = check_server(self._address, self.table, cells, self._where)
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
            start_over=f"empty the table, then {Ledger(self.table).start_over(query)}, and delete "
            f"{self._staging.pattern(query)}",
        )

    def open(self, query: QueryId, name: str) -> None:
        """Make the ledger table, in the namespace of the table, if it is missing."""
        ledger = Ledger(self.table)
        try:
            asked(self._address, ledger.make, running(self.timeout_s))
        except Unreachable as problem:
            raise unreachable(self._address, self._where, problem) from problem
        except Refused as refused:
            raise BadSink(
                f"{self._where}: the ledger table cannot be made: {refused}. Make it in the HBase "
                f"shell: create '{ledger.table}', 'f'. {NOTHING}"
            ) from refused

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; what HBase would not take is refused, while nothing is decided."""
        return self._staging.write((self._taken(batch, part) for batch in rows), part)

    def _taken(self, batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        cells = self._cells(batch.schema.names)
        limits = limits_of(self.table, self.cell_bytes_max)
        taken = without_refused(batch, cells, limits, part).select(list(cells.columns))
        return noted(taken, cells)

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[StagedPart]]) -> CommitResult:
        """Write the last word of the epoch on each key, and then its ledger row."""
        if not parts:
            return CommitResult({})
        commit = Commit(
            epoch,
            parts,
            self._staging,
            self._address,
            self.table,
            self._cells,
            self.connections,
            self._where,
        )
        result = commit.run()
        if not {Outcome.LOST, Outcome.UNKNOWN} & set(result.outcomes.values()):
            self._staging.discard(parts)
        return result

    def abort(self, parts: Sequence[Prepared[StagedPart]]) -> None:
        """Delete what was staged."""
        self._staging.discard(parts)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[StagedPart]]:
        """Return what is staged, half-written files too; also of tables that sinks had before."""
        beside = folders_in(f"file:{self.staging}", "hbase-")
        return self._staging.in_doubt(query, beside)

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the ledger holds for this table; another incarnation's row first."""
        ledger = Ledger(self.table)
        try:
            look = partial(ledger.seen, query=query)
            return asked(self._address, look, running(self.timeout_s))
        except Unreachable as problem:
            raise unreachable(self._address, self._where, problem) from problem
        except Refused as refused:
            raise BadSink(
                f"{self._where}: the ledger table {ledger.table!r} cannot be read, so it is not "
                f"known what the table holds: {refused}. Repair it in the HBase shell: enable it, "
                f"or give this user the right to read and write it. {NOTHING}"
            ) from refused
