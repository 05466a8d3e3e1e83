"""What the benchmarks share: a quiet session, figures with their spread, and the last line."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from beadline.environment.session import session


def quiet_session(connectors: tuple[str, ...] = (), **conf: str) -> SparkSession:
    """Two cores, nothing else running, no noise."""
    defaults = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "2g",
    }
    return session("bench", connectors=connectors, **{**defaults, **conf})


@contextmanager
def as_spark_comes(spark: SparkSession) -> Iterator[None]:
    """Start a query of Spark's own with what Spark does by itself for a local checkpoint.

    `session()` tells Spark to write no checksums beside such files; a query takes the settings of
    the moment at which it is started.
    """
    key = "fs.AbstractFileSystem.file.impl"
    spark.conf.set(key, "org.apache.hadoop.fs.local.LocalFs")
    try:
        yield
    finally:
        spark.conf.unset(key)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"p25": round(low, 3), "p50": round(middle, 3), "p75": round(high, 3)}


def report(**figures: Any) -> None:
    """Print the one JSON object that ends every benchmark."""
    load = round(os.getloadavg()[0], 2)
    print(json.dumps({**figures, "cores": os.cpu_count(), "load_1min": load}))
