"""How many rows lie in files that Spark wrote: counted there, not as they went in (rule 26).

What passed through Spark's writer says nothing of what it wrote: its csv writer leaves out lines.
The footers of parquet and orc say how many rows are above them. json and csv are counted by their
newlines: on the driver at about a gigabyte a second, 3 to 5 % of the time that Spark takes to write
them; large ones, and files that only the JVM can open, by a job on the executors.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO, RawIOBase
from typing import TYPE_CHECKING, Any

from beadline.files import join, open_files, split_uri
from beadline.files.base import FoundFile
from beadline.files.local import local_path
from beadline.sink import BadSetting, RowsRefused
from beadline.sinks.files.text import TEXT_FORMATS, folded
from beadline.sinks.files.values import check_collations, lossy_values, newlines, with_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

_CHUNK_BYTES = 1 << 20
_DRIVER_BYTES_MAX = 256 * 1024 * 1024
_FIRST_BYTES_MAX = 64 * 1024
_THREADS_MAX = 16


# Settings of a session under which Spark's writers change values, by format.
_LOSSY_SETTINGS = {
    "parquet": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"},
    "json": {"spark.sql.legacy.timeParserPolicy": "LEGACY"},
    "csv": {
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.nullValueWrittenAsQuotedEmptyStringCsv": "true",
    },
}


def check_session(frame: DataFrame, format_: str) -> None:
    """Raise if the session is set so that Spark's writer would change values."""
    for key, bad in _LOSSY_SETTINGS.get(format_, {}).items():
        value = str(frame.sparkSession.conf.get(key, None))
        if value.lower() == bad.lower():
            raise BadSetting(
                f"{key} is {value}, under which Spark writes other values to {format_} than it was "
                "given (times are cut, or null and empty text become the same). Unset it. Nothing "
                "of this epoch was written"
            )


@dataclass(frozen=True)
class Written:
    """What was observed of the rows as they passed to Spark's writer; counts what it wrote."""

    frame: DataFrame
    format: str
    observed: Observation | None
    header_lines: int  # in every csv file

    def rows(self, folder: str, found: Sequence[FoundFile]) -> tuple[int, set[str]]:
        """Return how many rows lie there, and the files without any.

        Spark's first task writes a file even for an empty frame, which readers need not open. In
        doubt a file is kept: one without rows does no harm.
        Raises if a row held a value that the files do not keep.
        """
        seen = self.observed.get if self.observed is not None else {}
        if seen.get("bad"):
            raise RowsRefused(
                f"{seen['bad']} row(s) cannot be kept as {self.format}: {seen['why']}. Nothing of "
                "the epoch is visible. Repair or filter such rows before they reach the sink, or "
                "use parquet"
            )
        counted = count_rows(self.frame, folder, found, self.format)
        total = counted if isinstance(counted, int) else sum(counted.values())
        rows = total - self.header_lines * len(found) - int(seen.get("newlines") or 0)
        if isinstance(counted, int):  # only the small file of the first task can be such a one
            counted = _count_first(folder, found)
        return rows, {path for path, lines in counted.items() if lines == self.header_lines}


def observe(
    frame: DataFrame, format_: str, options: Mapping[str, Any], partition_by: Sequence[str]
) -> tuple[DataFrame, Written]:
    """Return the frame with what is observed of it, and what counts its rows once written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if format_ == "parquet" and not partition_by:
        return frame, Written(frame, format_, None, 0)  # it keeps all; a schema takes milliseconds
    schema = frame.schema
    if format_ == "orc":
        check_collations(schema, format_)
    csv = format_ == "csv"
    header_lines = 0
    if csv and folded(options).get("header", "false") == "true":
        folders = {name.lower() for name in partition_by}
        kept = (name for name in schema.names if name.lower() not in folders)
        header_lines = 1 + sum(name.count("\n") for name in kept)
    metrics = []
    why = lossy_values(schema, format_, options, partition_by)
    if why is not None:
        metrics += [F.count(why).alias("bad"), F.min(why).alias("why")]
    if csv:
        metrics.append(F.sum(newlines(schema, partition_by)).alias("newlines"))
    observed = Observation() if metrics else None
    if observed is not None:
        frame = with_folders(frame.observe(observed, *metrics), schema, partition_by)
    return frame, Written(frame, format_, observed, header_lines)


def count_rows(
    frame: DataFrame, folder: str, found: Sequence[FoundFile], format_: str
) -> dict[str, int] | int:
    """Return the rows of each file, lines of text formats; or of all together, if Spark counted."""
    from pyarrow import ArrowException

    if not found:
        return 0
    if split_uri(folder)[0] == "file" and _on_driver(found, format_):
        paths = [file.path for file in found]
        try:
            with ThreadPoolExecutor(min(len(paths), _THREADS_MAX)) as pool:
                counted = pool.map(lambda path: _count(local_path(join(folder, path))), paths)
                return dict(zip(paths, counted, strict=True))
        except (ArrowException, EOFError, gzip.BadGzipFile):
            pass  # encrypted, or in a form that only Spark knows
    return _by_spark(frame, folder, format_)


def _on_driver(found: Sequence[FoundFile], format_: str) -> bool:
    if format_ not in TEXT_FORMATS:
        return True
    plain = all(_plain(file.path) for file in found)
    return plain and sum(file.size for file in found) <= _DRIVER_BYTES_MAX


def _plain(path: str) -> bool:
    """Whether Python reads it as it is; other codecs are Hadoop's own."""
    return path.endswith((".parquet", ".orc", ".json", ".csv", ".gz"))


def _count_first(folder: str, found: Sequence[FoundFile]) -> dict[str, int]:
    """Return the rows in the file of the first task, if it is small and can be read here."""
    from pyarrow import ArrowException

    files = open_files(folder)
    counted = {}
    for file in found:
        first = file.path.rpartition("/")[2].startswith("part-00000-")
        if first and file.size <= _FIRST_BYTES_MAX and _plain(file.path):
            data = files.read(join(folder, file.path)) or b""
            with suppress(ArrowException, EOFError, gzip.BadGzipFile):
                counted[file.path] = _count(file.path, BytesIO(data))
    return counted


def _count(path: str, data: BytesIO | None = None) -> int:
    """Return the rows, or lines, of a local file, or of one whose content is given."""
    if path.endswith(".parquet"):
        import pyarrow.parquet as pq

        return int(pq.read_metadata(data or path).num_rows)
    if path.endswith(".orc"):
        from pyarrow import orc

        return int(orc.ORCFile(data or path).nrows)
    if path.endswith(".gz"):
        with gzip.open(data or path) as unzipped:
            return _lines(unzipped)
    if data is not None:
        return _lines(data)
    with open(path, "rb", buffering=0) as file:
        return _lines(file)


def _lines(file: RawIOBase | BytesIO | gzip.GzipFile) -> int:
    lines = 0
    while chunk := file.read(_CHUNK_BYTES):
        lines += chunk.count(b"\n")
    return lines


def _by_spark(frame: DataFrame, folder: str, format_: str) -> int:
    """Count on the executors; Spark reads only the footers of parquet and orc for that."""
    # The path is no pattern, whatever the user's folder is called.
    path = "".join(f"\\{char}" if char in "{}[]*?\\" else char for char in folder)
    reader = frame.sparkSession.read.option("recursiveFileLookup", "true")
    if format_ not in TEXT_FORMATS:
        return reader.format(format_).load(path).count()
    return reader.option("lineSep", "\n").text(path).count()
