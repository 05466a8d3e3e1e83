"""The jobs of the cells: one stream of texts, from any source, into any sink.

Every row is a text such as ``row-17``, so that one reader finds it wherever it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.sink import AnySink
    from beadline.sinks.write_ahead import Delivery

Settings = dict[str, Any]
_ROW = re.compile(r"row-(\d+)")
_KEEP_BYTES = 1 << 40  # of the journal: it is what a cell is compared with


def numbers(source: str, spark: SparkSession, settings: Settings) -> DataFrame:
    """The source as Beadline offers it, and the number in each row."""
    return _SOURCES[source](spark, settings)


def _files(spark: SparkSession, settings: Settings) -> DataFrame:
    from beadline import sources

    return sources.files(spark, settings["path"], format="json", schema="number long")


def _kafka(spark: SparkSession, settings: Settings) -> DataFrame:
    from beadline import sources

    servers = settings["bootstrap_servers"]
    frame = sources.kafka(
        spark, bootstrap_servers=servers, topic=settings["topic"], starting="earliest"
    )
    return frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS number")


def _rate(spark: SparkSession, settings: Settings) -> DataFrame:
    from beadline import sources

    return sources.rate(spark, rows_per_second=200).selectExpr("value AS number")


def _socket(spark: SparkSession, settings: Settings) -> DataFrame:
    from beadline import sources

    frame = sources.socket(spark, settings["host"], settings["port"])
    return frame.selectExpr("CAST(value AS LONG) AS number")


def _journaled(spark: SparkSession, settings: Settings) -> DataFrame:
    from beadline import sources

    receiver = sources.SocketReceiver(settings["host"], settings["port"])
    frame = sources.journaled(spark, receiver, settings["journal"], keep_bytes=_KEEP_BYTES)
    return frame.selectExpr("CAST(value AS LONG) AS number")


_SOURCES: dict[str, Callable[[SparkSession, Settings], DataFrame]] = {
    "files": _files,
    "kafka": _kafka,
    "rate": _rate,
    "socket": _socket,
    "journaled": _journaled,
}
# Spark does not start again from the checkpoint of a socket: each start is a new query.
FORGETFUL = frozenset({"socket"})
_TEXT = "concat('row-', number)"
# What a sink's columns are called, where not simply ``value``.
COLUMNS = {
    "redis": ("'rows' AS key", f"{_TEXT} AS value"),
    "hbase": (f"{_TEXT} AS id", f"{_TEXT} AS value"),
}


def shaped(sink: str, frame: DataFrame) -> DataFrame:
    """The rows as the sink wants them."""
    return frame.selectExpr(*COLUMNS.get(sink, (f"{_TEXT} AS value",)))


def settings_of(sink: str, servers: dict[str, Any], folder: Path, tag: str) -> Settings:
    """Make the target of a cell; return what its sink is made of."""
    return _TARGETS[sink](servers.get(sink), folder, tag)


def _file_target(_: Any, folder: Path, tag: str) -> Settings:
    return {"path": str(folder / "out")}


def _sqlite_target(_: Any, folder: Path, tag: str) -> Settings:
    return {"path": str(folder / "out.db"), "table": "rows"}


def _kafka_target(cluster: Any, folder: Path, tag: str) -> Settings:
    cluster.create_topic(f"out-{tag}", partitions=2)
    return {"topic": f"out-{tag}", "bootstrap_servers": cluster.bootstrap_servers}


def _postgres_target(server: Any, folder: Path, tag: str) -> Settings:
    with server.connect() as connection:
        connection.execute(f"CREATE TABLE rows_{tag} (value text)")
    return {"dsn": server.dsn, "table": f"rows_{tag}"}


def _mysql_target(server: Any, folder: Path, tag: str) -> Settings:
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE rows_{tag} (value varchar(80))")
    connection.close()
    return {"dsn": server.dsn, "table": f"rows_{tag}"}


def _redis_target(server: Any, folder: Path, tag: str) -> Settings:
    staging = str(folder / "staging")
    return {"url": server.url, "command": "RPUSH", "prefix": f"{tag}:", "staging": staging}


def _hbase_target(server: Any, folder: Path, tag: str) -> Settings:
    server.create_table(f"rows_{tag}", "f")
    found = {"host": server.host, "port": server.port, "table": f"rows_{tag}", "row_key": "id"}
    return {**found, "family": "f", "staging": str(folder / "staging")}


def _write_ahead_target(_: Any, folder: Path, tag: str) -> Settings:
    return {"folder": str(folder / "ahead"), "delivered": str(folder / "delivered")}


_TARGETS: dict[str, Callable[[Any, Path, str], Settings]] = {
    "files": _file_target,
    "sqlite": _sqlite_target,
    "kafka": _kafka_target,
    "postgres": _postgres_target,
    "mysql": _mysql_target,
    "redis": _redis_target,
    "hbase": _hbase_target,
    "write_ahead": _write_ahead_target,
}
_CLASSES = {
    "files": "FileSink",
    "sqlite": "SqliteSink",
    "kafka": "KafkaSink",
    "postgres": "PostgresSink",
    "mysql": "MySqlSink",
    "redis": "RedisSink",
    "hbase": "HBaseSink",
}


def made(sink: str, settings: Settings) -> AnySink:
    """The sink itself."""
    from beadline import sinks

    if sink == "write_ahead":
        return sinks.WriteAheadSink(
            Appending(settings["delivered"]), settings["folder"], name="matrix"
        )
    found: AnySink = getattr(sinks, _CLASSES[sink])(**settings)
    return found


class Appending:
    """A receiver without a memory: it takes whatever it is given, as often as it is given it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, delivery: Delivery) -> None:
        """Append the rows to a file."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(f"{row['value']}\n" for row in delivery.rows)


def shown(sink: str, settings: Settings) -> Iterator[int]:
    """The numbers that a reader of the target sees now, as often as they show."""
    if sink == "write_ahead":
        path = Path(settings["delivered"])
        rows: Any = path.read_text("utf-8").splitlines() if path.exists() else []
    else:
        from beadline.verify.scratch import store_of

        target = made(sink, settings)
        rows = store_of(sink, target).shown(target)
    for row in rows:
        found = _ROW.search(str(row))
        if found is not None:
            yield int(found[1])
