"""`beadline epochs`: states, acks, times and committables of a checkpoint, read from outside."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import at_least_once, exactly_once
from beadline.observe.history import read_history
from beadline.sinks import FileSink, MemorySink
from beadline.testing.servers import HdfsCluster
from tests.command_line import Invoke, invoking
from tests.spark import jobs


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    """`beadline epochs` in this process; gives code, stdout, stderr."""
    with invoking("epochs", monkeypatch, capsys) as invoke:
        yield invoke


def objects(epochs: Invoke, *arguments: object) -> dict[str, Any]:
    code, out, err = epochs(*arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three epochs committed by generation 1; a fourth decided by generation 2, which died."""
    folder = tmp_path_factory.mktemp("past")
    jobs.write_input(folder / "in", files=3)
    jobs.run(jobs.sqlite_job(spark, folder), folder)
    jobs.write_input(folder / "in", files=1, first=3)
    jobs.run_and_die(jobs.sqlite_job(spark, folder), folder, "decide.after")
    return folder / "checkpoint"


def test_states_acks_and_times(past: Path, epochs: Invoke) -> None:
    found = objects(epochs, past)
    assert (found["query"], found["mode"], found["generation"]) == ("job", "exactly-once", 2)
    assert found["checkpoint"] == f"file:{past}"
    assert [(e["epoch"], e["state"]) for e in found["epochs"]] == [
        (0, "committed"),
        (1, "committed"),
        (2, "committed"),
        (3, "decided"),
    ]
    assert [e["generation"] for e in found["epochs"]] == [1, 1, 1, 2]
    for epoch in found["epochs"]:
        sink = epoch["sinks"]["out-t"]
        assert (sink["acks"], sink["rows"]) == (1, 10)
        assert sink["parts"][0]["committable"]["rows"] == 10
        assert epoch["started_at_ms"] <= epoch["prepared_at_ms"] <= epoch["decided_at_ms"]
        assert epoch["prepare_ms"] == epoch["prepared_at_ms"] - epoch["started_at_ms"]
    # The next decision of the same start tells when an epoch was finished.
    assert [e["finished_at_ms"] is None for e in found["epochs"]] == [False, False, True, True]
    assert found["epochs"][0]["commit_ms"] >= 0
    assert [claim["generation"] for claim in found["claims"]] == [1, 2]
    assert found["sinks"] == {"out-t": f"sqlite:{past.parent / 'out.db'}#t"}


def test_people_see_the_same(past: Path, epochs: Invoke) -> None:
    code, out, _ = epochs(past)
    assert code == 0
    assert "job, exactly-once" in out
    assert "generation 2 since" in out
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:3] for row in rows][-1] == ["3", "decided", "2"]
    assert "out-t 1 part (10 rows)" in out
    assert "the next start finishes it" in out


def test_one_epoch_with_its_committables(past: Path, epochs: Invoke) -> None:
    code, out, _ = epochs(past, "--epoch", 1)
    assert code == 0
    assert "job, epoch 1: committed" in out
    assert "sha256" in out
    assert "part 0, 10 rows" in out
    assert "attempt" not in out, "Spark numbers attempts through: it is an id, not a retry"
    assert [e["epoch"] for e in objects(epochs, past, "--epoch", 1)["epochs"]] == [1]
    assert "finished not yet" in epochs(past, "--epoch", 3)[1]


def test_a_sink_that_takes_all_rows_as_one_part(
    spark: SparkSession, tmp_path: Path, epochs: Invoke
) -> None:
    """Beside one that takes two: it was complete, and is not shown as one of two."""
    jobs.write_input(tmp_path / "in", files=3)
    frame = jobs.read(spark, tmp_path / "in").repartition(2)
    stream = exactly_once(frame, "job").to(FileSink(str(tmp_path / "out")))
    jobs.run(stream.to(jobs.rows_sink(tmp_path)), tmp_path)
    code, out, _ = epochs(tmp_path / "checkpoint")
    assert code == 0
    assert out.count("files-out 1 part (10 rows)") == 3
    assert "out-t 2 parts (10 rows)" in out
    found = objects(epochs, tmp_path / "checkpoint")["epochs"]
    files = [epoch["sinks"]["files-out"]["parts"][0] for epoch in found]
    assert [part["attempt"] for part in files] == [0, 0, 0]
    assert [part["committable"]["rows"] for part in files] == [10, 10, 10]


def test_the_last_ones(past: Path, epochs: Invoke) -> None:
    assert [e["epoch"] for e in objects(epochs, past, "--last", 2)["epochs"]] == [2, 3]
    assert epochs(past, "--last", 0)[0] == 2


def test_it_changes_nothing(past: Path, epochs: Invoke) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in past.rglob("*") if path.is_file()}

    before = contents()
    epochs(past)
    epochs(past, "--epoch", 3, "--json")
    assert contents() == before


def test_an_undecided_epoch_is_in_doubt(
    spark: SparkSession, tmp_path: Path, epochs: Invoke
) -> None:
    jobs.write_input(tmp_path / "in", files=1)
    jobs.run_and_die(jobs.sqlite_job(spark, tmp_path), tmp_path, "prepare.after")
    checkpoint = tmp_path / "checkpoint"
    assert [e["state"] for e in objects(epochs, checkpoint)["epochs"]] == ["in doubt"]
    assert "in doubt (planned, not decided" in epochs(checkpoint, "--epoch", 0)[1]
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert [e["state"] for e in objects(epochs, checkpoint)["epochs"]] == ["committed"]


def test_at_least_once_and_freed_records(
    spark: SparkSession, tmp_path: Path, epochs: Invoke
) -> None:
    """Spark's commit log tells of epochs that no decision is kept of, or was ever made of."""
    jobs.write_input(tmp_path / "in", files=4)
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path, keep=2)
    found = objects(epochs, tmp_path / "checkpoint")["epochs"]
    assert [e["state"] for e in found] == ["committed"] * 4
    assert (found[0]["sinks"], found[3]["sinks"]["out-t"]["acks"]) == ({}, 1)
    assert "its decision is no longer retained" in epochs(tmp_path / "checkpoint", "--epoch", 0)[1]
    weak = at_least_once(jobs.read(spark, tmp_path / "in"), "weak").to(MemorySink("weak"))
    query = weak.start(str(tmp_path / "weak"), available_now=True)
    assert query.awaitTermination(120)
    found = objects(epochs, tmp_path / "weak")["epochs"]
    assert [e["state"] for e in found] == ["committed"] * 4


def test_on_hdfs(
    spark: SparkSession, hdfs_cluster: HdfsCluster, past: Path, epochs: Invoke
) -> None:
    uri = f"{hdfs_cluster.uri}/epochs-of-a-past"
    path = spark._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    configuration = spark._jsc.hadoopConfiguration()
    target = path(uri)
    files = target.getFileSystem(configuration)
    files.copyFromLocalFile(path(f"file:{past}"), target)
    assert read_history(uri).epochs == read_history(str(past)).epochs
    assert objects(epochs, uri)["checkpoint"] == uri
    code, _, err = epochs(f"{uri}-not-there")
    assert (code, "there is no checkpoint" in err) == (2, True)


def test_a_file_system_that_spark_has_not(spark: SparkSession, epochs: Invoke) -> None:
    code, _, err = epochs("s3a://bucket/checkpoint")
    words = " ".join(err.split())
    assert code == 1
    assert "checkpoint s3a://bucket/checkpoint: Spark has no file system for it" in words
    assert "org.apache.hadoop:hadoop-aws" in words
    assert "Py4J" not in words


def test_a_namenode_that_is_not_there(spark: SparkSession, epochs: Invoke) -> None:
    begun = time.monotonic()
    code, _, err = epochs("hdfs://127.0.0.1:1/checkpoint")
    assert time.monotonic() - begun < 20
    assert code == 1
    assert "cannot be read" in err
    assert "Connection refused" in " ".join(err.split())
    assert "Py4J" not in err


def test_no_such_checkpoint(tmp_path: Path, epochs: Invoke) -> None:
    code, _, err = epochs(tmp_path / "nowhere")
    assert code == 2
    assert f"there is no checkpoint file:{tmp_path}/nowhere" in err
    (tmp_path / "file").touch()
    assert epochs(tmp_path / "file")[0] == 2


def test_not_a_checkpoint_of_ours(tmp_path: Path, epochs: Invoke) -> None:
    code, _, err = epochs(tmp_path)
    assert code == 2
    assert "is there, but has no decision log" in err
    (tmp_path / "offsets").mkdir()
    assert "is a checkpoint of Spark's that has no decision log" in epochs(tmp_path)[2]
    (tmp_path / "beadline" / "log").mkdir(parents=True)
    code, _, err = epochs(tmp_path)
    assert (code, "empty decision log" in err) == (2, True)


def test_no_such_epoch(past: Path, epochs: Invoke) -> None:
    code, _, err = epochs(past, "--epoch", 17)
    assert code == 2
    assert "has no record of epoch 17; it has 0 to 3" in err


def test_a_corrupt_record_is_named(past: Path, tmp_path: Path, epochs: Invoke) -> None:
    for slot in sorted((past / "beadline" / "log").glob("0*")):
        copy = tmp_path / slot.name / "beadline" / "log"
        copy.mkdir(parents=True)
        for record in (past / "beadline" / "log").glob("0*"):
            data = record.read_bytes()
            (copy / record.name).write_bytes(data[:-3] if record == slot else data)
        code, out, err = epochs(tmp_path / slot.name)
        assert code == 1, out
        assert err.startswith("CorruptRecord: ")
        assert f"{copy}/{slot.name}" in err


def test_an_unreadable_checkpoint(epochs: Invoke) -> None:
    code, _, err = epochs("nosuch://host/checkpoint")
    assert code == 1
    assert err.startswith("CheckpointProblem: ")
    assert "\tat " not in err
