"""Sources: streaming DataFrames whose epochs can be redelivered with the same rows.

That is all that exactly-once asks of a source. These are Spark's own and thin on purpose; any other
streaming DataFrame that keeps the promise will do as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.errors import BadQuery, BadSetting
from beadline.guarantee.options import check_options
from beadline.sources.journal.receivers import Receiver, SocketReceiver
from beadline.sources.kafka.source import kafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Receiver", "SocketReceiver", "files", "journaled", "kafka", "rate", "socket"]

FORMATS = ("parquet", "orc", "json", "csv", "text")
# Options with which Spark silently skips a file.
_LOSING = ("ignoremissingfiles", "ignorecorruptfiles")


def files(
    spark: SparkSession,
    path: str,
    *,
    format: str = "parquet",  # noqa: A002 (Spark's own word)
    schema: StructType | str | None = None,
    max_files_per_epoch: int | None = None,
    **options: str | int | bool,
) -> DataFrame:
    """Read every file that appears in a folder, once.

    Guarantee: exactly-once, for files that are put there whole (by a rename) and are neither
    changed nor deleted before their epoch is committed: Spark's checkpoint names the files of each
    epoch, so an epoch that is redelivered has the same rows; if one of its files is gone by then,
    Beadline stops the query, where Spark would leave the file out. A file whose modification time
    is more than ``maxFileAge`` (7 days) behind the newest is not seen. ``max_files_per_epoch``
    bounds an epoch; without it, the first epoch reads the whole backlog.

    ``schema`` is needed for every format but text: a stream does not guess its columns. Other
    ``options`` go to Spark's reader; one that is misspelt is refused, where Spark would ignore it.
    """
    if format not in FORMATS:
        raise BadQuery(f"files(): format {format!r} is not one of {', '.join(FORMATS)}")
    if schema is None and format != "text":
        raise BadQuery(
            f'files({path!r}): give schema="id long, name string" or a StructType; the columns of '
            "a stream must be the same in every epoch, so they are not guessed from its first files"
        )
    if max_files_per_epoch is not None and max_files_per_epoch < 1:
        raise BadSetting(f"files(): max_files_per_epoch is at least 1, not {max_files_per_epoch}")
    for name, value in options.items():
        if name.lower() in _LOSING and str(value).lower() == "true":
            raise BadSetting(f"files(): with {name} Spark would leave files out silently")
    check_options(format, options, f"files({path!r})")
    reader = spark.readStream.format(format)
    for name, value in options.items():
        reader = reader.option(name, value)
    if schema is not None:
        reader = reader.schema(schema)
    if max_files_per_epoch is not None:
        reader = reader.option("maxFilesPerTrigger", max_files_per_epoch)
    return reader.load(path)


def rate(
    spark: SparkSession, *, rows_per_second: int = 10, partitions: int | None = None
) -> DataFrame:
    """Generate rows: ``timestamp`` and ``value``, which counts up from 0.

    Guarantee: exactly-once. A row is a function of its number and of the time at which the query
    was created, which is in Spark's checkpoint; so an epoch that is redelivered has the same rows.
    It catches up on the time in which the query was down. For demos, tests and benchmarks.
    """
    if rows_per_second < 1:
        raise BadSetting(f"rate(): rows_per_second is at least 1, not {rows_per_second}")
    reader = spark.readStream.format("rate").option("rowsPerSecond", rows_per_second)
    if partitions is not None:
        if partitions < 1:
            raise BadSetting(f"rate(): partitions is at least 1, not {partitions}")
        reader = reader.option("numPartitions", partitions)
    return reader.load()


def socket(spark: SparkSession, host: str, port: int, *, timestamps: bool = False) -> DataFrame:
    """Read lines of text from a TCP server, as Spark's own socket source does: ``value``.

    Guarantee: at-most-once. A socket cannot be asked again: what had arrived and was not committed
    when the query died is lost, and Spark does not continue from such a checkpoint: each start is a
    new query, with a new checkpoint and another name. It reads nothing again, and the rows that its
    targets hold stay there. So both functions refuse it without
    ``allow="at-most-once"``. ``journaled`` with a ``SocketReceiver`` keeps the lines instead.
    ``timestamps`` adds the time at which each line arrived.
    """
    address = SocketReceiver(host, port)
    reader = spark.readStream.format("socket").option("includeTimestamp", timestamps)
    return reader.option("host", address.host).option("port", address.port).load()


def journaled(
    spark: SparkSession, receiver: Receiver, journal: str, *, keep_bytes: int = 0
) -> DataFrame:
    """Read what a receiver accepts: ``value``, ``received_at``, and ``position``, which is unique.

    ``journal`` is a folder on a local disk that driver and executors share; it belongs to one
    query. Values that are committed are deleted from it, except for the last ``keep_bytes``.

    Guarantee: exactly-once from the journal on: what arrives is on the disk before Spark is offered
    it. What had been sent and was not on the disk yet when this process died is lost, unless sender
    and receiver acknowledge: a ``Receiver`` of your own may do so after ``journal.sync()``. If it
    dies between the two, the sender sends again and the value is there twice: let the sender give
    each value an id, and drop duplicates by that. Values are accepted only while the query runs.
    """
    from beadline.sources.journal.source import read_journaled

    return read_journaled(spark, receiver, journal, keep_bytes)
