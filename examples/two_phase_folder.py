"""A sink in Flink's shape: a temp folder per transaction, moved into place at commit.

    out/.pending/<part id>/rows.jsonl    begun, written, and fsynced at pre-commit
    out/<part id>/rows.jsonl             committed: one rename, which is there or is not

A folder can be moved once, so a commit that is repeated, or comes an hour late, changes nothing.
Readers list the folder for names that do not begin with a dot, and leave what they have read where
it is: a folder that is in neither place cannot be told from one that was never written.

Run it: ``python examples/two_phase_folder.py``. What it must keep is proven in
``tests/unit/test_suite_two_phase.py``; what it means to Flink's users is told in
``docs/two-phase-commit.md``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from beadline.sink import (
    BadSink,
    Capabilities,
    CommitFailed,
    Committable,
    Guarantee,
    Outcome,
    Part,
    PartId,
    Prepared,
    QueryId,
    Seen,
    TwoPhaseCommitSink,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = "rows.jsonl"


@dataclass(frozen=True)
class FolderTransaction(Committable):
    """What survives the task: the folder's two names."""

    pending: str
    finished: str


@dataclass
class OpenFolder:
    """What does not: the open file."""

    names: FolderTransaction
    file: IO[str]


@dataclass(frozen=True)
class FolderSink(TwoPhaseCommitSink[FolderTransaction, OpenFolder]):
    """JSON lines in one folder per part."""

    path: str

    @property
    def default_name(self) -> str:
        """The folder's name."""
        return Path(self.path).name

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """The folder above must be there; nothing is made yet."""
        if not Path(self.path).is_absolute() or not Path(self.path).parent.is_dir():
            raise BadSink(f"{self.path} must be an absolute path in a folder that is there.")
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each part appears whole, by one rename.",
            target=f"folder:{self.path}",
        )

    def begin_transaction(self, part: Part) -> OpenFolder:
        """Make the temp folder, named by the part's id so that in_doubt can find it."""
        names = self.transaction(part.id)
        os.makedirs(names.pending)
        return OpenFolder(names, open(Path(names.pending) / ROWS, "w", encoding="utf-8"))

    def invoke(self, transaction: OpenFolder, rows: pa.RecordBatch) -> None:
        """Write a batch."""
        transaction.file.writelines(json.dumps(row, default=str) + "\n" for row in rows.to_pylist())

    def pre_commit(self, transaction: OpenFolder) -> FolderTransaction:
        """Flush, fsync and close: after this the rows survive a power cut."""
        transaction.file.flush()
        os.fsync(transaction.file.fileno())
        transaction.file.close()
        pending = Path(transaction.names.pending)
        for folder in (pending, *list(pending.parents)[:3]):
            sync(folder)  # up to the one that names the target, which may be new as well
        return transaction.names

    def commit_transaction(self, handle: FolderTransaction) -> Outcome | None:
        """Move; the second one finds it moved."""
        try:
            os.rename(handle.pending, handle.finished)
        except FileNotFoundError:
            if Path(handle.finished).is_dir():
                sync(Path(self.path))  # the mover may have died before it could
                return Outcome.ALREADY_COMMITTED
            raise CommitFailed(
                f"{handle.finished} is neither there nor pending. Either a reader took it away "
                "after the commit, or it was deleted before: put it back, or make an empty "
                "folder of that name if its rows have been read."
            ) from None
        sync(Path(self.path))
        return None

    def abort_transaction(self, handle: FolderTransaction) -> None:
        """Delete the temp folder."""
        shutil.rmtree(handle.pending, ignore_errors=True)

    def abandon(self, transaction: OpenFolder) -> None:
        """Close the file of a task that failed; its folder is found by in_doubt."""
        transaction.file.close()

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[FolderTransaction]]:
        """What Flink would read from its state, asked of the file system."""
        for id_ in ids_in(Path(self.path) / ".pending"):
            if id_.belongs_to(query):
                yield Prepared(id_, 0, self.transaction(id_))

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """The newest finished part under this name; another incarnation's first."""
        ids = [id_ for id_ in ids_in(Path(self.path)) if id_.query == query.name]
        newest = max(ids, key=lambda i: (i.incarnation != query.incarnation, i.epoch), default=None)
        return Seen(newest.incarnation, newest.epoch) if newest else None

    def transaction(self, id_: PartId) -> FolderTransaction:
        """The two names of a part."""
        folder = Path(self.path)
        return FolderTransaction(str(folder / ".pending" / str(id_)), str(folder / str(id_)))


def ids_in(folder: Path) -> Iterator[PartId]:
    """The parts in a folder; strangers' names are skipped."""
    names = os.listdir(folder) if folder.is_dir() else []
    return filter(None, map(PartId.parse, names))


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str | Path) -> list[dict[str, Any]]:
    """What a reader sees."""
    files = sorted(Path(path).glob(f"[!.]*/{ROWS}"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def main() -> None:
    """Send three small files through it, twice: the second start finds nothing left to do."""
    import sys
    import tempfile

    from pyspark.sql import SparkSession

    from beadline import exactly_once

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the same packages
    spark = SparkSession.builder.master("local[2]").appName("two-phase").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "in").mkdir()
        for number in range(3):
            rows = [{"id": number * 10 + i} for i in range(10)]
            (top / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        for _ in range(2):
            orders = spark.readStream.schema("id long").json(str(top / "in"))
            query = (
                exactly_once(orders, name="orders")
                .to(FolderSink(str(top / "out")))
                .start(checkpoint=str(top / "checkpoint"), available_now=True)
            )
            query.awaitTermination()
            ids = [row["id"] for row in read(top / "out")]
            print(f"{len(ids)} rows, {len(set(ids))} of them different")
    spark.stop()


if __name__ == "__main__":
    main()
