"""The process that gets killed: ``python -m tests.harness.kafka.driver FOLDER``.

It runs the job, one short epoch after the other, until a file says that it is enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.demo.workload import TOTALS
from beadline.verify.driver import light_settings, run_as_program, run_until, stand_by, tell
from tests.harness.kafka.workload import OUT, KafkaWorkload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.stream import Stream

RECORDS_PER_EPOCH_MAX = 400
# Where a broker dies while Spark asks it for offsets, Kafka's client waits a minute before it asks
# another; Spark asks three times in all.
SOURCE = {"kafka.default.api.timeout.ms": 10_000, "kafka.request.timeout.ms": 5_000}


def stream(spark: SparkSession, workload: KafkaWorkload) -> Stream:
    """The job: records as they are to Kafka, and totals per key to SQLite if asked for."""
    from beadline import exactly_once, sources
    from beadline.sinks import KafkaSink, SqliteSink

    frame = sources.kafka(
        spark,
        bootstrap_servers=workload.servers,
        topic=workload.source,
        max_per_epoch=RECORDS_PER_EPOCH_MAX,
        options=SOURCE,
    )
    rows = frame.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    sink = KafkaSink(
        workload.target,
        bootstrap_servers=workload.sink_servers or workload.servers,
        transaction_timeout_s=workload.transaction_timeout_s,
    )
    job = exactly_once(rows, workload.name).to(sink, name=OUT)
    if workload.totals:
        database = SqliteSink(workload.database, TOTALS, mode="add", key=("key",))
        job = job.to(database, rows=totals, name=TOTALS)
    return job


def totals(rows: DataFrame) -> DataFrame:
    """One epoch's records, added up by key."""
    from pyspark.sql import functions as F

    number = F.col("value").cast("long")
    return rows.groupBy("key").agg(F.count("value").alias("rows"), F.sum(number).alias("numbers"))


def run(workload: KafkaWorkload) -> None:
    """Run until told to stop."""
    from beadline.environment.session import session

    spark = session("beadline-kills", ("kafka",), **light_settings(workload.scratch))
    stand_by()
    query = stream(spark, workload).start(str(workload.checkpoint), listener=tell)
    run_until(query, workload.stop)
    # No spark.stop(): the JVM ends with this process, and nobody waits for it.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; exit with the code of Beadline's error, if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.kafka.driver")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    run_as_program(lambda: run(KafkaWorkload.load(given.folder)))


if __name__ == "__main__":
    main()
