"""Rule 28: how rows fall into parts is part of the decision, and a replay pins it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from beadline import Stream, exactly_once
from beadline.decisions import Decision, DecisionLog, FileStore
from beadline.errors import NotDeterministic
from beadline.files import open_files
from beadline.spark.conf import is_set
from beadline.spark.partitioning import CORES, LEAVES, Partitioning
from tests.programs import output_of
from tests.spark.expiring import ExpiringSink
from tests.spark.jobs import SCHEMA, run, run_and_die, write_input

CHANGED = {
    LEAVES: "5",
    "spark.sql.files.openCostInBytes": "1000",
    "spark.sql.files.maxPartitionBytes": "2000",
    "spark.sql.files.minPartitionNum": "9",
}


def newest(folder: Path) -> Decision:
    """The newest decision of the query."""
    log = f"file://{folder}/checkpoint/beadline/log"
    decision = DecisionLog(FileStore(open_files(log), log)).open().decision
    assert decision is not None
    return decision


def job(spark: SparkSession, folder: Path, sink: ExpiringSink) -> Stream:
    """All files that are there in one epoch."""
    frame = spark.readStream.schema(SCHEMA).json(str(folder / "in"))
    return exactly_once(frame, "job").to(sink)


def test_a_replay_under_other_settings_goes_on_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ExpiringSink(str(tmp_path / "broker"))
    ids = write_input(tmp_path / "in", 10)
    spark = spark.newSession()
    run_and_die(job(spark, tmp_path, sink), tmp_path, "decide.after")
    before = len(sink.open_names())
    decided = newest(tmp_path).settings
    assert decided[LEAVES] == decided[CORES] == str(spark.sparkContext.defaultParallelism)
    sink.expire(1)
    for key, value in CHANGED.items():
        spark.conf.set(key, value)
    run(job(spark, tmp_path, sink), tmp_path)
    assert sorted(row["id"] for row in sink.visible()) == ids
    assert newest(tmp_path).settings == decided
    assert {key: spark.conf.get(key) for key in CHANGED} == CHANGED, "the user's own are changed"
    more = write_input(tmp_path / "in", 10, first=10)
    run(job(spark, tmp_path, sink), tmp_path)
    assert sorted(row["id"] for row in sink.visible()) == ids + more
    assert newest(tmp_path).settings[LEAVES] == "5"
    assert newest(tmp_path).parts != before, "the settings make no difference"


def test_the_epochs_after_the_replay_have_the_settings_of_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ExpiringSink(str(tmp_path / "broker"))
    write_input(tmp_path / "in", 10)
    spark = spark.newSession()
    run_and_die(job(spark, tmp_path, sink), tmp_path, "decide.after")
    sink.expire(1)
    spark.conf.set(LEAVES, "5")
    # Planned only when the replay is done, in the same run.
    write_input(tmp_path / "in", 10, first=10)
    run(job(spark, tmp_path, sink), tmp_path)
    last = newest(tmp_path)
    assert (last.epoch, last.settings[LEAVES]) == (1, "5")


def test_a_decision_of_an_older_version_knows_fewer_settings(spark: SparkSession) -> None:
    spark = spark.newSession()
    spark.conf.set(LEAVES, "5")
    spark.conf.set("spark.sql.files.openCostInBytes", "1000")
    known = {"spark.sql.files.maxPartitionBytes": "2000", "spark.sql.shuffle.partitions": "77"}
    both = Partitioning(), Partitioning()  # two queries of one session, which both replay
    for partitioning in both:
        partitioning.pin(spark, known)
        assert spark.conf.get("spark.sql.files.maxPartitionBytes") == "2000"
        assert spark.conf.get(LEAVES) == "5"
        assert spark.conf.get("spark.sql.files.openCostInBytes") == "1000"
        assert spark.conf.get("spark.sql.shuffle.partitions") != "77", "that is Spark's to keep"
    for partitioning in both:
        partitioning.unpin()
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == "134217728b"
    assert not is_set(spark, "spark.sql.files.maxPartitionBytes")


def play(folder: Path, phase: str, cores: int) -> list[str]:
    """Run the driver and return what it says."""
    return output_of("tests.spark.other_cores", folder, phase, cores).splitlines()


def test_a_restart_on_another_number_of_cores(tmp_path: Path) -> None:
    """Files continue; where it cannot be pinned, the error says what it is, and blames no plan."""
    ids = write_input(tmp_path / "in", 10)
    assert play(tmp_path, "decide", 2) == ["files parts 2", "rate parts 2"]
    files, rate = play(tmp_path, "replay", 3)
    assert files == f"files visible {len(ids)}"
    assert rate.startswith(f"rate {NotDeterministic.__name__} ")
    assert f"{CORES} was '2' and is '3'" in rate
    assert "rand()" not in rate
