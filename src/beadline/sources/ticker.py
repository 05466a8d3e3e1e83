"""A source that advances the time of an idle input.

Spark takes the smallest watermark of several inputs, so one that brings no rows holds all of them
up. A ticker stands beside such an input, in a union in front of its watermark, and brings single
rows with nothing but a time, which are filtered out again behind it (``event_time.watermarks``).
The rows are a function of the offsets, and those are in Spark's checkpoint: an epoch that is
redelivered has the same watermark.

The driver publishes the time (``event_time.idle``), in a file for each reader. Spark runs the
reader in another process, which does not know which query it belongs to. So the reader generates a
key when the query is created; the key is part of its offsets, and comes back with each of them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from beadline.guarantee import declare

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TICKER_FORMAT = "beadline-ticker"
INPUT = "beadline.input"  # an option of the source: whose time it advances
_FOLDER = "folder"
_KEY, _TICK, _OF = "ticker", "tick_ms", "input"
_NONE = 0  # no tick yet
_held = threading.Event()

declare(
    TICKER_FORMAT,
    "exactly-once",
    "it brings no rows, it advances the time while this input is idle; the times are checkpointed",
)


def ticks_beside(frame: DataFrame, name: str) -> DataFrame:
    """Return a stream of the column ``tick``: the times to which an input's is advanced."""
    spark = frame.sparkSession
    spark.dataSource.register(Ticker)
    reader = spark.readStream.format(TICKER_FORMAT).option(INPUT, name)
    return reader.option(_FOLDER, str(_folder())).load()


def ticker_keys(offset: Any) -> tuple[str, str] | None:
    """Return the input that a source's offset belongs to, and the reader's key; None for others."""
    if isinstance(offset, dict) and _KEY in offset and _OF in offset:
        return str(offset[_OF]), str(offset[_KEY])
    return None


def publish_tick(key: str, tick_ms: int) -> None:
    """Let a reader advance its input's time to this."""
    if _held.is_set():
        return
    path = _folder() / key
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(tick_ms))
    os.replace(unfinished, path)


def hold_ticks() -> None:
    """Advance no input of this process: where runs are compared, the clock must not matter."""
    _held.set()


@lru_cache(maxsize=1)
def _folder() -> Path:
    """One folder per driver: readers have keys of their own. Nothing in it outlives the driver."""
    folder = Path(tempfile.mkdtemp(prefix="beadline-ticker-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Ticker(DataSource):
    """What Spark knows the source by."""

    @classmethod
    def name(cls) -> str:
        """The name for ``readStream.format``."""
        return TICKER_FORMAT

    def schema(self) -> str:
        """Nothing but a time."""
        return "tick timestamp"

    def streamReader(self, schema: StructType) -> TickReader:  # noqa: N802 (Spark's name)
        """Return a reader."""
        options = {name.lower(): value for name, value in dict(self.options).items()}
        return TickReader(options[INPUT], options[_FOLDER])


class Tick(InputPartition):
    """The one row of an epoch in which the time is advanced."""

    def __init__(self, tick_ms: int) -> None:
        super().__init__(None)
        self.tick_ms = tick_ms


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offers the time that the driver has last published."""

    def __init__(self, name: str, folder: str) -> None:
        self._name = name
        self._folder = folder
        self._key = uuid.uuid4().hex
        self._still = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's names, here and below)
        """No time yet."""
        return self._offset(_NONE)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """A query that ends with what is there waits for no input."""
        self._still = True

    def latestOffset(  # noqa: N802
        self, start: Mapping[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return the time to advance the input's to; the same as before if it is not later.

        Before Spark 4.2 a reader does not get its last offset, so there each start of the query
        generates a new key.
        """
        if start is not None:
            self._key = str(start[_KEY])
        before_ms = _NONE if start is None else int(start[_TICK])
        return self._offset(before_ms if self._still else max(before_ms, self._published_ms()))

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Tick]:
        """One row, or none if the time stands still."""
        return [Tick(int(end[_TICK]))] if int(end[_TICK]) > int(start[_TICK]) else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the row; on an executor."""
        import pyarrow as pa

        assert isinstance(partition, Tick)
        time = pa.array([partition.tick_ms * 1000], pa.timestamp("us", tz="UTC"))
        yield pa.RecordBatch.from_arrays([time], names=["tick"])

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def stop(self) -> None:
        """Nothing is held."""

    def _offset(self, tick_ms: int) -> dict[str, Any]:
        return {_OF: self._name, _KEY: self._key, _TICK: tick_ms}

    def _published_ms(self) -> int:
        try:
            return int((Path(self._folder) / self._key).read_text())
        except (FileNotFoundError, ValueError):
            return _NONE
