"""Another driver's Spark replaces what ours has planned: found before the decision, planned again.

Spark's own logs know no fence. An older driver of the query that plans the same epoch in the same
moment, or was paused while it did, may rename its own file over ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once
from beadline.errors import WrongCheckpoint
from beadline.observe import Event
from beadline.points import hooked
from beadline.sinks import FileSink
from tests.spark.jobs import session_conf


def replace(path: Path, text: str) -> None:
    """As Spark does it: another file is renamed over it."""
    other = path.with_name(f".{path.name}.other.tmp")
    other.write_text(text)
    other.rename(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def run(frame: DataFrame, folder: Path, strike: Callable[[], None], epochs: int) -> list[Event]:
    """Run some epochs; once, in the first, another driver strikes when all is prepared."""
    told: list[Event] = []
    struck: list[bool] = []

    def hook(point: str) -> None:
        if point == "prepare.after" and not struck:
            struck.append(True)
            strike()

    stream = exactly_once(frame, "replaced").to(FileSink(str(folder / "out")))
    with hooked(hook):
        query = stream.start(str(folder / "checkpoint"), listener=told.append)
        while sum(event.kind == "committed" for event in told) < epochs and query.isActive:
            query.awaitTermination(0.05)
        query.stop()
    assert query.exception() is None
    return told


def test_source_positions_that_were_replaced(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    offsets = tmp_path / "checkpoint/offsets/0"

    def strike() -> None:
        *head, line = offsets.read_text().splitlines()
        position = {**json.loads(line), "offset": 25}
        replace(offsets, "\n".join([*head, json.dumps(position, separators=(",", ":"))]))

    told = run(source.load(), tmp_path, strike, epochs=3)
    assert [event.kind for event in told].count("spark restarted") == 1
    values = [row.value for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(values) == list(range(len(values)))
    assert len(values) % 10 == 5, "the epoch was not planned again with the other's positions"


def test_what_spark_has_planned_is_what_it_has_written(spark: SparkSession, tmp_path: Path) -> None:
    """With several sources, one of which has nothing yet and one a text with commas."""
    (tmp_path / "in").mkdir()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    files = spark.readStream.schema("value long").json(str(tmp_path / "in"))
    frame = numbers.select("value").union(files).union(numbers.select("value"))
    told = run(frame, tmp_path, lambda: None, epochs=2)
    assert "spark restarted" not in [event.kind for event in told]
    lines = (tmp_path / "checkpoint/offsets/0").read_text().splitlines()[2:]
    assert len(lines) == 3
    assert "-" in lines
    assert any("," in line for line in lines)


def test_a_checkpoint_in_which_more_was_changed(spark: SparkSession, tmp_path: Path) -> None:
    """It is compared with the log again before Spark continues; by then epochs were written."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    checkpoint = tmp_path / "checkpoint"

    def strike(point: str) -> None:
        offsets = checkpoint / "offsets/1"
        if point == "prepare.after" and offsets.exists():
            replace(offsets, offsets.read_text().replace('"offset":20', '"offset":25'))
            (checkpoint / "commits/7").write_text("v1\n{}")

    stream = exactly_once(source.load(), "changed").to(FileSink(str(tmp_path / "out")))
    with hooked(strike), pytest.raises(WrongCheckpoint, match="is at epoch 7") as caught:
        stream.start(str(checkpoint)).awaitTermination(60)
    assert "Epochs up to 0 are complete; no later one is decided" in str(caught.value)
    assert "Nothing was written" not in str(caught.value)


@pytest.mark.parametrize("chosen", [None, "FileContextBasedCheckpointFileManager"])
def test_local_checkpoints_are_written_the_quick_way_unless_a_setting_forbids_it(
    spark: SparkSession, tmp_path: Path, chosen: str | None
) -> None:
    key = "spark.sql.streaming.checkpointFileManagerClass"
    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    with session_conf(spark, {key: f"{package}.{chosen}"} if chosen else {}):
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        stream = exactly_once(frame, "quick").to(FileSink(str(tmp_path / "out")))
        query = stream.start(str(tmp_path / "checkpoint"))
        manager = query._spark._jsq.streamingQuery().offsetLog().fileManager()
        query.stop()
        assert spark.conf.get(key, None) == (f"{package}.{chosen}" if chosen else None)
    found = manager.getClass().getSimpleName()
    assert found == (chosen or "FileSystemBasedCheckpointFileManager")


def test_a_file_source_keeps_the_manager_that_spark_takes(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    query = (
        exactly_once(frame, "files")
        .to(FileSink(str(tmp_path / "out")))
        .start(str(tmp_path / "checkpoint"))
    )
    manager = query._spark._jsq.streamingQuery().offsetLog().fileManager()
    query.stop()
    assert manager.getClass().getSimpleName() == "FileContextBasedCheckpointFileManager"
