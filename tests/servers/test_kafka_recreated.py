"""A topic that was deleted and created again has none of its rows, and none of its offsets.

Kafka itself says nothing: it commits a transaction whose topic is another by now, and gives a
reader the new topic's records at the old topic's offsets.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, at_least_once, exactly_once, sources
from beadline.errors import (
    BeadlineError,
    CheckpointProblem,
    CommitFailed,
    EpochFailed,
    PrepareFailed,
    SourceGone,
    WrongCheckpoint,
)
from beadline.observe import Event
from beadline.sinks import KafkaSink, MemorySink
from beadline.sinks.kafka import topics
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.command_line import Invoke
from tests.servers.kafka_doubt import Doubt
from tests.servers.kafka_recreated import delete, recreate
from tests.servers.test_kafka_source import connector, produce, wait_for  # noqa: F401 (a fixture)
from tests.servers.transactions_cli import invoke_fixture  # noqa: F401
from tests.spark.jobs import read, run, run_and_die, write_input

# A key store that Python's client cannot read, and that nobody opens here.
ONLY_JAVA = {"kafka.ssl.truststore.location": "/nowhere/trusted.jks"}


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> Iterator[str]:
    name = f"recreated-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name, partitions=2)
    yield name
    pool().close()


@pytest.fixture
def doubt(kafka_cluster: KafkaCluster, tmp_path: Path) -> Iterator[Doubt]:
    made = Doubt(kafka_cluster, tmp_path)
    yield made
    made.close()


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker is not behind itself."""
    monkeypatch.setattr(topics, "SURE_S", 0.3)


@pytest.mark.usefixtures("sure")
@pytest.mark.parametrize("again", [True, False])
def test_decided_rows_that_went_with_their_topic_are_not_committed(
    doubt: Doubt, again: bool
) -> None:
    """Whether it was created again or not; each time that the commit is tried."""
    part = doubt.prepare(3)
    epoch = doubt.decide(3, [part])
    (recreate if again else delete)(doubt.cluster, doubt.topic)
    what = "deleted and created again" if again else "deleted after"
    for _ in range(2):
        with pytest.raises(CommitFailed, match=f"epoch 3.*{doubt.topic}.*{what}") as caught:
            doubt.sink.commit(epoch, [part])
        assert "does not count as committed" in str(caught.value)
        assert "drop=" in str(caught.value), "no way out is named"
    assert doubt.states(part.committable.transactional_id) == ["CompleteCommit"]


@pytest.mark.usefixtures("sure")
def test_a_commit_by_hand_to_a_recreated_topic_fails(doubt: Doubt, invoke: Invoke) -> None:
    part = doubt.prepare(3)
    doubt.decide(3, [part])
    recreate(doubt.cluster, doubt.topic)
    where = ("--bootstrap-servers", doubt.servers, "--checkpoint", doubt.checkpoint)
    code, out, _ = invoke("commit", part.committable.transactional_id, *where, "--yes")
    assert (code, "deleted and created again" in out) == (1, True)


def test_a_topic_of_its_own_is_the_same_topic(doubt: Doubt) -> None:
    """Version 1 of the committable did not name topics, and is committed as before."""
    part = doubt.prepare(0)
    ((name, id_),) = part.committable.topics
    assert name == doubt.topic
    assert id_ == connect(KafkaSettings(doubt.servers)).topic_ids([name])[name]
    doubt.sink.commit(doubt.decide(0, [part]), [part])
    assert len(doubt.visible()) == 3


def rows_to(spark: SparkSession, cluster: KafkaCluster, folder: Path, topic: str) -> Stream:
    """To a topic that each row names, under a fixed name of the sink."""
    rows = read(spark, folder / "in").selectExpr(
        "cast(id as string) as value", f"'{topic}' as topic"
    )
    sink = KafkaSink(bootstrap_servers=cluster.bootstrap_servers)
    return exactly_once(rows, topic).to(sink, name="out")


@pytest.mark.usefixtures("sure")
def test_a_query_whose_rows_name_the_topic(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """It stops at each start, until the operator gives the epoch up; then it continues."""
    ids = write_input(tmp_path / "in", 2)
    stream = rows_to(spark, kafka_cluster, tmp_path, topic)
    run_and_die(stream, tmp_path, "decide.after")
    recreate(kafka_cluster, topic)
    told: list[Event] = []
    for _ in range(2):
        with pytest.raises(CommitFailed, match="deleted and created again"):
            run(stream, tmp_path, listener=told.append)
    assert [event for event in told if event.kind == "committed"] == []
    query = stream.start(
        str(tmp_path / "checkpoint"), available_now=True, drop=["out@0"], listener=told.append
    )
    assert query.awaitTermination(120)
    shown = sorted(int(record.value or b"") for record in kafka_cluster.read(topic))
    assert shown == ids[len(ids) // 2 :]
    rows = {event.epoch: event.details["rows"] for event in told if event.kind == "committed"}
    assert rows == {0: {}, 1: {"out": len(ids) // 2}}, "rows that were given up are counted"


def test_the_sinks_own_topic(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Found at the start, before anything is claimed; what was open is given up with it."""
    ids = write_input(tmp_path / "in", 2)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)
    stream = exactly_once(rows, topic).to(sink, name="out")
    run_and_die(stream, tmp_path, "decide.after")
    recreate(kafka_cluster, topic)
    with pytest.raises(CheckpointProblem, match=r"'out'.*drop="):
        run(stream, tmp_path)
    client = connect(KafkaSettings(kafka_cluster.bootstrap_servers))
    assert [name for name in client.list(OPEN_STATES) if topic in name]
    query = stream.start(str(tmp_path / "checkpoint"), available_now=True, drop=["out"])
    assert query.awaitTermination(120)
    shown = sorted(int(record.value or b"") for record in kafka_cluster.read(topic))
    assert shown == ids[len(ids) // 2 :]
    assert [name for name in client.list(OPEN_STATES) if topic in name] == []
    run(stream, tmp_path)  # and from then on as ever


@pytest.mark.parametrize("epochs", [1, 2], ids=["new writer", "writer that lives on"])
def test_the_sinks_own_topic_while_the_query_runs(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path, epochs: int
) -> None:
    """Nothing is decided for the new topic, and what is missing is what was in the old one.

    Writers take turns, so that only the third epoch meets one that knows the old topic.
    """
    ids = write_input(tmp_path / "in", epochs)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)
    stream = exactly_once(rows, topic).to(sink, name="out")
    query = stream.start(str(tmp_path / "checkpoint"))
    try:
        wait_for(lambda: len(list(kafka_cluster.read(topic))) == len(ids), query)
        recreate(kafka_cluster, topic, partitions=2)  # writers know of two
        write_input(tmp_path / "in", 1, first=epochs)
        missing = "epoch 0 are" if epochs == 1 else "epochs 0 to 1 are"
        lacks = f"epoch {epochs}, sink 'out'.*recreated.*{missing} missing.*Nothing of the epoch"
        with pytest.raises(PrepareFailed, match=lacks):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert list(kafka_cluster.read(topic)) == []
    with pytest.raises(CheckpointProblem, match=f"rows of {missing} missing"):
        run(stream, tmp_path)
    query = stream.start(str(tmp_path / "checkpoint"), available_now=True, drop=["out"])
    assert query.awaitTermination(120)
    shown = sorted(int(record.value or b"") for record in kafka_cluster.read(topic))
    assert shown == list(range(10 * epochs, 10 * epochs + 10))


@pytest.mark.usefixtures("sure")
def test_a_writer_that_lives_on_while_its_topic_is_made_again(doubt: Doubt) -> None:
    """It looked before: wherever its rows went, those of earlier epochs are gone."""
    first = doubt.prepare(0)
    doubt.sink.commit(doubt.decide(0, [first]), [first])
    recreate(doubt.cluster, doubt.topic)
    later = doubt.prepare_again(2, first)
    with pytest.raises(CommitFailed, match="all earlier rows") as caught:
        doubt.sink.commit(doubt.decide(2, [later]), [later])
    assert [record.value for record in doubt.cluster.read(doubt.topic)] == [b"2.0.0"]
    assert "write only the missing ones" in str(caught.value), "rows that are there are doubled"


def numbers(
    spark: SparkSession,
    cluster: KafkaCluster,
    topic: str,
    folder: Path,
    options: dict[str, str] | None = None,
    begin: Callable[[DataFrame, str], Stream] = exactly_once,
) -> Stream:
    servers = cluster.bootstrap_servers
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic, options=options)
    values = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value")
    return begin(values, "job").to(MemorySink(folder.name))


@pytest.mark.usefixtures("connector")
@pytest.mark.parametrize(
    ("point", "options"),
    [("", {}), ("decide.after", {}), ("prepare.after", {}), ("", ONLY_JAVA)],
    ids=["finished", "decided", "prepared", "java"],
)
def test_a_source_that_is_another_topic_by_now(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    point: str,
    options: dict[str, str],
) -> None:
    """With more records than the old one had, so that Spark finds nothing wrong."""
    servers = kafka_cluster.bootstrap_servers
    produce(servers, topic, range(100))
    stream = numbers(spark, kafka_cluster, topic, tmp_path, options)
    if point:
        run_and_die(stream, tmp_path, point)
    else:
        run(stream, tmp_path)
    before = MemorySink.rows(tmp_path.name)
    recreate(kafka_cluster, topic, partitions=2)
    produce(servers, topic, range(1000, 1300))
    with pytest.raises(WrongCheckpoint, match=f"{topic}.*deleted and"):
        run(stream, tmp_path)
    shown = MemorySink.rows(tmp_path.name)
    if point == "decide.after":  # what is decided is finished first, and needs no topic
        assert before == []
        assert sorted(row["value"] for row in shown) == list(range(100))
    else:
        assert shown == before


def recreated_while_it_is_read(
    stream: Stream, cluster: KafkaCluster, topic: str, folder: Path, records: int
) -> BeadlineError:
    """Read the old topic's 100 records, give its name to one with as many; return the error."""
    produce(cluster.bootstrap_servers, topic, range(100))
    query = stream.start(str(folder / "checkpoint"))
    try:
        wait_for(lambda: len(MemorySink.rows(folder.name)) == 100, query)
        recreate(cluster, topic, partitions=2)
        produce(cluster.bootstrap_servers, topic, range(1000, 1000 + records))
        with pytest.raises(BeadlineError) as caught:
            query.awaitTermination(60)
    finally:
        query.stop()
    assert len(MemorySink.rows(folder.name)) == 100
    return caught.value


@pytest.mark.usefixtures("connector")
@pytest.mark.parametrize("begin", [exactly_once, at_least_once])
def test_a_source_that_becomes_another_topic_while_it_is_read(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    begin: Callable[[DataFrame, str], Stream],
) -> None:
    stream = numbers(spark, kafka_cluster, topic, tmp_path, begin=begin)
    error = recreated_while_it_is_read(stream, kafka_cluster, topic, tmp_path, records=300)
    assert "deleted and" in str(error)
    assert topic in str(error)


@pytest.mark.usefixtures("connector")
def test_a_source_that_becomes_a_shorter_topic_while_it_is_read(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Spark notices by itself, and is not left to advise what is refused here."""
    stream = numbers(spark, kafka_cluster, topic, tmp_path)
    error = recreated_while_it_is_read(stream, kafka_cluster, topic, tmp_path, records=10)
    assert isinstance(error, SourceGone)
    assert re.search(r"offset was changed from 50 to 5.*starting=", str(error))
    assert "failOnDataLoss" not in str(error)


@pytest.mark.usefixtures("connector")
def test_records_that_are_gone_before_they_were_read(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Spark's own advice, failOnDataLoss=false, is refused here; ours is not."""
    servers = kafka_cluster.bootstrap_servers
    produce(servers, topic, range(20))
    run(numbers(spark, kafka_cluster, topic, tmp_path), tmp_path)
    produce(servers, topic, range(20, 60))
    admin = AdminClient({"bootstrap.servers": servers})
    for answer in admin.delete_records([TopicPartition(topic, n, 20) for n in (0, 1)]).values():
        answer.result(30)
    with pytest.raises(EpochFailed, match=r"(?i)deleted|lost") as caught:
        run(numbers(spark, kafka_cluster, topic, tmp_path), tmp_path)
    assert "failOnDataLoss" not in str(caught.value)
    assert len(MemorySink.rows(tmp_path.name)) == 20


def test_a_control_topic_that_was_deleted(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """After the transaction expired nothing can be proven; no start promises to, and one is told.

    The operator gives the epoch up by name, and the query continues.
    """
    ids = write_input(tmp_path / "in", 2)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)
    stream = exactly_once(rows, topic).to(sink, name="out")
    run_and_die(stream, tmp_path, "decide.after")
    client = connect(KafkaSettings(kafka_cluster.bootstrap_servers))
    left = [one.transaction for one in client.describe(client.list(OPEN_STATES)).values()]
    client.until_answered(client.fence, [one for one in left if topic in one.id])
    delete(kafka_cluster, f"beadline-{topic}")
    told: list[Event] = []
    for _ in range(2):
        with pytest.raises(CommitFailed, match="A restart will not help") as caught:
            run(stream, tmp_path, listener=told.append)
        assert 'drop=["out@0"]' in str(caught.value)
        assert "the next start finishes it" not in str(caught.value)
        assert "nothing of it is lost" not in str(caught.value)
    query = stream.start(
        str(tmp_path / "checkpoint"), available_now=True, drop=["out@0"], listener=told.append
    )
    assert query.awaitTermination(120)
    rows_told = {e.epoch: e.details["rows"] for e in told if e.kind == "committed"}
    assert rows_told == {0: {}, 1: {"out": len(ids) // 2}}, "rows that were given up are counted"
    assert sorted(int(r.value or b"") for r in kafka_cluster.read(topic)) == ids[len(ids) // 2 :]
