"""The job that is verified: rows of files into one sink of ``sinks.py``, named in the environment.

VERIFY_FOLDER=/some/folder    with the input in ``in``
VERIFY_SINK=OwnSink           the class
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from beadline import Stream, exactly_once, sources
from tests.kill.broken import sinks

FOLDER = Path(os.environ["VERIFY_FOLDER"])
SCHEMA = "id long, k string, v long"


def job(spark: SparkSession) -> Stream:
    rows = sources.files(spark, str(FOLDER / "in"), format="json", schema=SCHEMA)
    kind = getattr(sinks, os.environ["VERIFY_SINK"])
    return exactly_once(rows, "shop").to(kind(FOLDER / "shop.db", "orders"), name="orders")
