"""The log on a real HDFS: one winner per slot, deaths, interrupts, and a NameNode that dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from beadline import Stream, exactly_once
from beadline.decisions import Claim, DecisionLog, FileStore
from beadline.errors import CommitBlocked, Fenced, WrongCheckpoint
from beadline.files import join, open_files
from beadline.files.hadoop import CLIENT
from beadline.ids import QueryId
from beadline.points import hooked
from beadline.shared.retry import polls
from beadline.sinks import FileSink
from beadline.testing.servers.hdfs import HdfsCluster
from tests.spark.jobs import die_at, read, write_input

RACES = 200


@pytest.fixture
def home(hdfs_cluster: HdfsCluster, spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A folder of the test's own on HDFS."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in hdfs_cluster.client_settings.items():
        conf.set(key, value)
    uri = join(hdfs_cluster.uri, tmp_path.name)
    yield uri
    open_files(uri).delete(uri)


def job(spark: SparkSession, folder: Path, home: str) -> Stream:
    """Rows from local files to files on HDFS, two an epoch."""
    frame = read(spark, folder / "in").repartition(2, "id")
    return exactly_once(frame, "job").to(FileSink(join(home, "out")))


def run(stream: Stream, home: str, **settings: Any) -> None:
    """Run to the end of what is there."""
    query = stream.start(join(home, "checkpoint"), available_now=True, **settings)
    assert query.awaitTermination(120)


def shown(spark: SparkSession, home: str) -> list[int]:
    """What a reader of the folder on HDFS sees."""
    return sorted(row.id for row in spark.read.parquet(join(home, "out")).collect())


def reconnect(spark: SparkSession, home: str) -> None:
    """Let Spark's own client find out, by an error, that its connection has died."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(home)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    again = polls(30, 0.2)
    while True:
        try:
            files.exists(path)
            return
        except Py4JJavaError:
            assert again(), "no NameNode for Spark's client"


def claim(nonce: str, generation: int) -> Claim:
    """A claim of nobody in particular."""
    query = QueryId("race", "0" * 32, "hdfs:/race")
    return Claim(nonce, query, generation, "exactly-once", -1, {}, None, 0)


def test_two_drivers_racing_for_slots_have_one_winner_each(home: str) -> None:
    files = open_files(home)
    store = FileStore(files, join(home, "log"))
    store.make_folder()
    logs = [DecisionLog(FileStore(open_files(home), join(home, "log"))) for _ in range(2)]
    won: list[list[int]] = [[], []]
    gate = threading.Barrier(2)

    def drive(who: int) -> None:
        for _ in range(RACES):
            logs[who].open()
            gate.wait(30)
            try:
                here = logs[who].append(claim(f"{who}-{time.perf_counter_ns()}", who + 1))
                won[who].append(here.slot)
            except Fenced:
                continue

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(drive, range(2)))
    assert set(won[0]).isdisjoint(won[1])
    # A winner that sees the other's next slot is fenced too, so a race may have none; never two.
    assert len(won[0]) + len(won[1]) <= RACES
    assert min(len(won[0]), len(won[1])) > 0, won


@pytest.mark.parametrize(
    "point",
    [
        *("append.written", "append.linked", "decide.after"),
        *("files.begun", "files.moving", "files.renaming", "files.renamed"),
    ],
)
def test_a_death(spark: SparkSession, tmp_path: Path, home: str, point: str) -> None:
    ids = write_input(tmp_path / "in", 3)
    with hooked(die_at(point, times=2)), pytest.raises(BaseException, match=point):
        run(job(spark, tmp_path, home), home)
    run(job(spark, tmp_path, home), home)
    assert shown(spark, home) == ids


@pytest.mark.parametrize("point", ["append.written", "append.linked", "decide.after"])
def test_an_interrupt_in_the_middle_of_an_append(
    spark: SparkSession, tmp_path: Path, home: str, point: str
) -> None:
    ids = write_input(tmp_path / "in", 4)
    reached, go_on = threading.Event(), threading.Event()
    count = 0

    def hook(name: str) -> None:
        nonlocal count
        count += name == point
        if name == point and count == 3 and not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    with hooked(hook):
        query = job(spark, tmp_path, home).start(join(home, "checkpoint"))
        assert reached.wait(60)
        stopper = threading.Thread(target=query.stop)
        stopper.start()
        stopper.join(0.5)
        go_on.set()
        stopper.join(60)
    assert query.exception() is None
    run(job(spark, tmp_path, home), home)
    assert shown(spark, home) == ids


def test_a_namenode_that_dies_and_comes_back(
    spark: SparkSession, hdfs_cluster: HdfsCluster, tmp_path: Path, home: str
) -> None:
    ids = write_input(tmp_path / "in", 3)
    stream = job(spark, tmp_path, home)
    query = stream.start(join(home, "checkpoint"))
    query.processAllAvailable()
    hdfs_cluster.namenode.kill()
    ids += write_input(tmp_path / "in", 3, first=3)
    time.sleep(1.0)
    hdfs_cluster.namenode.restart()
    hdfs_cluster.wait_ready()
    # Spark's own writes may have given up meanwhile, and the query with them; ours must not lie.
    time.sleep(5.0)
    query.stop()
    run(stream, home)
    assert shown(spark, home) == ids


def test_a_namenode_that_is_down_gives_no_decided_epoch_up(
    spark: SparkSession,
    hdfs_cluster: HdfsCluster,
    tmp_path: Path,
    home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with drop= either: the epoch is whole, and is finished when the NameNode is back."""
    monkeypatch.setitem(CLIENT, "dfs.client.retry.policy.spec", "200,2")  # not for minutes
    ids = write_input(tmp_path / "in", 3)
    stream = job(spark, tmp_path, home)
    checkpoint = str(tmp_path / "checkpoint")  # the log outlives the NameNode
    with hooked(die_at("decide.after", times=2)), pytest.raises(BaseException, match="decide"):
        assert stream.start(checkpoint, available_now=True).awaitTermination(120)

    def kill(point: str) -> None:
        if point == "recover.before":
            hdfs_cluster.namenode.kill()

    try:
        with hooked(kill), pytest.raises(CommitBlocked, match="gave up nothing") as raised:
            stream.start(checkpoint, drop=["files-out"])
    finally:
        hdfs_cluster.namenode.restart()
        hdfs_cluster.wait_ready()
        reconnect(spark, home)
    assert "\n" not in str(raised.value), "no Java stack"
    assert stream.start(checkpoint, available_now=True).awaitTermination(120)
    assert shown(spark, home) == ids


def test_a_copied_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path, home: str) -> None:
    write_input(tmp_path / "in", 2)
    run(job(spark, tmp_path, home), home)
    files = open_files(home)
    assert files.rename(join(home, "checkpoint"), join(home, "moved"))
    with pytest.raises(WrongCheckpoint, match="copied or moved"):
        job(spark, tmp_path, home).start(join(home, "moved"))
