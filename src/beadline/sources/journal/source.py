"""A push source that can be read again: what arrives is in a journal before Spark is offered it.

Spark's Python data source API: positions of the journal are the offsets, so an epoch that is
redelivered is read from the same bytes. The receiver runs beside the driver, where offsets are
asked for.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from beadline.errors import BadSetting
from beadline.files.local import local_path
from beadline.guarantee import declare
from beadline.sources.journal.log import Journal, JournalProblem, JournalRecord, read, segments
from beadline.sources.journal.receivers import Receiver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger("beadline")

_FORMAT = "beadline-journal"
_SCHEMA = "value string, received_at timestamp, position long"
_PAUSE_S = 1.0
_ROWS_PER_BATCH = 10_000

declare(
    _FORMAT,
    "exactly-once",
    "what arrives is on the disk, in a journal, before Spark is offered it, and is read again from "
    "there. The window that remains is before the journal: what the sender has handed over and was "
    "not on the disk yet when the receiver died, unless sender and receiver acknowledge",
)


def read_journaled(
    spark: SparkSession, receiver: Receiver, journal: str, keep_bytes: int
) -> DataFrame:
    """See ``sources.journaled``."""
    from pyspark import cloudpickle

    if not isinstance(receiver, Receiver):
        raise BadSetting(f"journaled() takes a Receiver, not {type(receiver).__name__}")
    if keep_bytes < 0:
        raise BadSetting(f"journaled(): keep_bytes is 0 or more, not {keep_bytes}")
    if "://" in journal and not journal.startswith("file:"):
        raise BadSetting(f"journaled(): the journal is on a local disk, not at {journal}")
    folder = local_path(journal) if journal.startswith("file:") else str(Path(journal).absolute())
    packed = base64.b64encode(cloudpickle.dumps(receiver)).decode()  # type: ignore[no-untyped-call]
    spark.dataSource.register(JournalSource)
    reader = spark.readStream.format(_FORMAT).option("path", folder).option("receiver", packed)
    return reader.option("keepBytes", keep_bytes).load()


class JournalSource(DataSource):
    """What Spark knows the source by."""

    @classmethod
    def name(cls) -> str:
        """The name for ``readStream.format``."""
        return _FORMAT

    def schema(self) -> str:
        """Text, when it arrived, and where it stands."""
        return _SCHEMA

    def streamReader(self, schema: StructType) -> JournalReader:  # noqa: N802 (Spark's name)
        """Return a reader, which takes nothing in before it is asked for offsets."""
        return JournalReader(dict(self.options))


class Range(InputPartition):
    """The positions that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class JournalReader(DataSourceStreamReader):
    """Reads the journal; beside the driver, it is also what fills it."""

    def __init__(self, options: dict[str, str]) -> None:
        lowered = {name.lower(): value for name, value in options.items()}
        self._folder = lowered["path"]
        self._keep_bytes = int(lowered.get("keepbytes", "0"))
        self._packed = lowered["receiver"]
        self._journal: Journal | None = None
        self._committed = 0
        self._offered = -1

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where the oldest segment begins."""
        self._open()
        return {"position": segments(Path(self._folder))[0].first}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        """The position up to which everything is on the disk.

        A journal that cannot be written ends the query, once all that is in it was offered: a mere
        warning, while the query continues, would be missed.
        """
        journal = self._open()
        problem, durable = journal.problem, journal.durable
        if problem is not None and durable == self._offered:
            raise JournalProblem(
                f"journal {self._folder} could not be written: {type(problem).__name__}: "
                f"{problem}. What had arrived and was not on the disk is lost to it, unless the "
                "sender sends it again; what Spark was offered is safe. "
                "Make room, and start the query again."
            )
        self._offered = durable
        return {"position": durable}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One task, so that what arrived in order stays so."""
        if start["position"] == end["position"]:
            return []
        return [Range(start["position"], end["position"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the records as Arrow batches."""
        assert isinstance(partition, Range)
        records: list[JournalRecord] = []
        for record in read(Path(self._folder), partition.start, partition.end):
            records.append(record)
            if len(records) == _ROWS_PER_BATCH:
                yield _batch(records)
                records = []
        if records:
            yield _batch(records)

    def commit(self, end: dict[str, int]) -> None:
        """Delete what is no longer needed; the epoch before the newest can still be redelivered."""
        before, self._committed = self._committed, end["position"]
        self._open().forget(before - self._keep_bytes)

    def stop(self) -> None:
        """End the receiver."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _open(self) -> Journal:
        if self._journal is None:
            from pyspark import cloudpickle

            receiver = cloudpickle.loads(base64.b64decode(self._packed))
            self._journal = Journal(Path(self._folder))
            # A daemon: when Spark's driver dies, this process ends, whatever it waits for.
            run = threading.Thread(target=_receive, args=(receiver, self._journal), daemon=True)
            run.start()
        return self._journal

    def __getstate__(self) -> dict[str, Any]:
        """Executors get what they need to read; neither an open journal nor the receiver."""
        return {**self.__dict__, "_journal": None, "_packed": ""}


def _receive(receiver: Receiver, journal: Journal) -> None:
    """Call the receiver again and again: a connection that ends does not end the query."""
    while not journal.stopping.is_set():
        try:
            receiver.receive(journal)
        except Exception as error:  # noqa: BLE001 (a user's code; the query continues)
            logger.warning("the receiver of %s failed: %s", journal.folder, error)
        journal.stopping.wait(_PAUSE_S)


def _batch(records: list[JournalRecord]) -> pa.RecordBatch:
    import pyarrow as pa

    values = pa.array([record.value for record in records], pa.binary())
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: what cannot be read is shown as such, and nothing is lost
        decoded = [record.value.decode(errors="replace") for record in records]
        texts = pa.array(decoded, pa.string())
    times = pa.array([record.received_us for record in records], pa.timestamp("us", tz="UTC"))
    positions = pa.array([record.position for record in records], pa.int64())
    return pa.RecordBatch.from_arrays(
        [texts, times, positions], names=["value", "received_at", "position"]
    )
