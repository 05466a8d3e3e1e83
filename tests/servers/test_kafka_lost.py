"""Transactions that the broker threw away, where Flink loses data: proven, and replayed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import Stream, exactly_once, sources
from beadline.errors import NotDeterministic, PartLost
from beadline.observe import Event
from beadline.points import hooked
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import OPEN_STATES, Described, connect
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.spark.jobs import read, rows_sink, run, run_and_die, table, write_input

Build = Callable[["Job"], Stream]
# Of the two epochs that are run, how many does SQLite show after a death at the second?
SHOWN = {"decide.after": 1, "kafka.commit": 2}


class Job:
    """Rows in two parts, into Kafka and into SQLite."""

    def __init__(self, spark: SparkSession, cluster: KafkaCluster, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.folder = folder
        self.name = f"lost-{uuid.uuid4().hex[:8]}"
        self.timeout_s = 600.0
        self.events: list[Event] = []
        self.written = 0
        cluster.create_topic(self.name, partitions=2)

    @property
    def sink(self) -> KafkaSink:
        return KafkaSink(
            self.name,
            bootstrap_servers=self.cluster.bootstrap_servers,
            transaction_timeout_s=self.timeout_s,
        )

    def stream(self, frame: DataFrame, value: Column | None = None) -> Stream:
        def to_kafka(rows: DataFrame) -> DataFrame:
            shown = F.col("id").cast("string") if value is None else value
            return rows.select(shown.alias("value"))

        return (
            exactly_once(frame, self.name).to(self.sink, rows=to_kafka).to(rows_sink(self.folder))
        )

    def source(self) -> DataFrame:
        return read(self.spark, self.folder / "in")

    def run(self, build: Build) -> None:
        """To the end; how often SQLite was written to is counted, for its ledger hides it."""
        self.written = 0

        def count(point: str) -> None:
            self.written += point == "ledger.before"

        with hooked(count):
            run(build(self), self.folder, listener=self.events.append)

    def die(self, build: Build, point: str) -> None:
        run_and_die(build(self), self.folder, point, times=2, listener=self.events.append)

    def open_now(self) -> list[Described]:
        client = connect(KafkaSettings(self.cluster.bootstrap_servers))
        ours = (id_ for id_ in client.list(OPEN_STATES) if f"~{self.name}~" in id_)
        return [one for one in client.describe(ours).values() if one.state in OPEN_STATES]

    def wait_for_time_out(self) -> None:
        deadline_s = time.monotonic() + 30
        while self.open_now():
            assert time.monotonic() < deadline_s, "the broker keeps them open"
            time.sleep(0.1)

    def abort(self, some: Iterable[Described]) -> None:
        """As the broker does at the end of its patience."""
        client = connect(KafkaSettings(self.cluster.bootstrap_servers))
        client.until_answered(client.fence, [one.transaction for one in some])

    def check(self, ids: list[int], lost: int = 1) -> None:
        shown = sorted(int(record.value or b"") for record in self.cluster.read(self.name))
        assert shown == ids
        assert table(self.folder) == ids
        assert self.open_now() == []
        kinds = [event.kind for event in self.events]
        assert (kinds.count("lost"), kinds.count("replayed")) == (lost, lost)
        acts = [event for event in self.events if event.kind != "waiting"]
        for number, event in enumerate(acts):
            if event.kind == "lost":  # what follows is for Kafka alone
                prepared, replayed = acts[number + 1 : number + 3]
                assert list(prepared.details["acks"]) == [self.sink.default_name]
                assert replayed.details["sinks"] == [self.sink.default_name]


@pytest.fixture
def job(spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path) -> Job:
    return Job(spark, kafka_cluster, tmp_path)


def stateless(job: Job) -> Stream:
    return job.stream(job.source().repartition(2, "id"))


def narrow(job: Job) -> Stream:
    """Without a shuffle the order of rows is part of the checksum."""
    return job.stream(job.source())


def stateful(job: Job) -> Stream:
    return job.stream(job.source().dropDuplicates(["id"]))


def different_each_time(job: Job) -> Stream:
    return job.stream(job.source().repartition(2, "id"), F.lit(uuid.uuid4().hex))


def different_and_narrow(job: Job) -> Stream:
    return job.stream(job.source(), F.lit(uuid.uuid4().hex))


@pytest.mark.parametrize(
    ("build", "point", "timeout_s"),
    [
        (stateless, "decide.after", 600),
        (stateless, "kafka.commit", 3),
        (narrow, "decide.after", 600),
        (stateful, "kafka.commit", 600),
    ],
)
def test_the_brokers_gave_everything_up(
    job: Job, build: Build, point: str, timeout_s: float
) -> None:
    """By a short timeout and a long pause, or as they then do; SQLite may have committed."""
    ids = write_input(job.folder / "in", 3, rows=40)
    job.timeout_s = timeout_s
    job.die(build, point)
    shown = SHOWN[point]
    assert table(job.folder) == ids[: shown * 40]
    if timeout_s == 600:
        job.abort(job.open_now())
    job.wait_for_time_out()
    job.timeout_s = 600
    job.run(build)
    job.check(ids)
    assert job.written == 3 - shown, "what SQLite had was written again"


def from_kafka(job: Job) -> Stream:
    servers = job.cluster.bootstrap_servers
    frame = sources.kafka(job.spark, bootstrap_servers=servers, topic=f"{job.name}-in")
    return job.stream(frame.selectExpr("cast(cast(value as string) as long) as id"))


@pytest.mark.parametrize("lost", [1, 3])
def test_parts_are_known_again_whatever_their_number(job: Job, lost: int) -> None:
    """Spark's Kafka source numbers the topic's partitions again at each start."""
    topic = f"{job.name}-in"
    job.cluster.create_topic(topic, partitions=6)
    producer = Producer({"bootstrap.servers": job.cluster.bootstrap_servers})
    for number in range(120):
        producer.produce(topic, str(number), partition=number % 6)
    producer.flush()
    run_and_die(from_kafka(job), job.folder, "decide.after", listener=job.events.append)
    assert len(job.open_now()) == 6
    job.abort(job.open_now()[:lost])
    job.run(from_kafka)
    job.check(list(range(120)))


@pytest.mark.parametrize("point", list(SHOWN))
def test_one_part_of_several_is_lost(job: Job, point: str) -> None:
    ids = write_input(job.folder / "in", 3, rows=40)
    job.die(stateless, point)
    shown = SHOWN[point]
    assert table(job.folder) == ids[: shown * 40]
    assert len(job.open_now()) == 2
    job.abort(job.open_now()[:1])
    job.run(stateless)
    job.check(ids)
    assert job.written == 3 - shown, "what SQLite had was written again"


def test_a_death_in_the_replay(job: Job) -> None:
    ids = write_input(job.folder / "in", 3)
    job.die(stateless, "decide.after")
    job.abort(job.open_now()[:1])
    run_and_die(stateless(job), job.folder, "prepare.after")
    run_and_die(stateless(job), job.folder, "decide.after")
    job.run(stateless)
    assert sorted(int(record.value or b"") for record in job.cluster.read(job.name)) == ids
    assert table(job.folder) == ids
    assert job.open_now() == []


@pytest.mark.parametrize("build", [different_each_time, different_and_narrow])
def test_a_plan_that_is_not_deterministic_stops(job: Job, build: Build) -> None:
    write_input(job.folder / "in", 3)
    job.die(build, "decide.after")
    job.abort(job.open_now()[:1])
    with pytest.raises(NotDeterministic, match="not deterministic"):
        job.run(build)
    assert job.open_now() == [], "what the replay prepared was left open"
    shown = len(job.cluster.read(job.name))
    assert 10 <= shown < 20, "the lost part was published all the same"


def test_committed_and_then_the_id_was_used_again_is_not_lost(job: Job) -> None:
    """The broker's answer is the same as for a lost one (rule 12); only the marker tells."""
    ids = write_input(job.folder / "in", 3)
    job.die(stateless, "commit.after")
    client = connect(KafkaSettings(job.cluster.bootstrap_servers))
    ours = [id_ for id_ in client.list() if f"~{job.name}~" in id_]
    assert len(ours) == 4
    assert all(WriterId.parse(id_) for id_ in ours)
    job.abort(client.describe(ours).values())  # moves every producer's epoch on, twice
    job.abort(client.describe(ours).values())
    job.run(stateless)
    job.check(ids, lost=0)


def test_parts_lost_again_and_again_stop_the_query(job: Job) -> None:
    """An epoch longer than the timeout (rule 22): some replays, then the setting is named."""
    ids = write_input(job.folder / "in", 2)

    def forget(event: Event) -> None:
        job.events.append(event)
        if event.kind in ("decided", "replayed"):
            job.abort(job.open_now())

    with pytest.raises(PartLost, match="transaction_timeout_s"):
        run(stateless(job), job.folder, listener=forget)
    job.events.clear()
    job.run(stateless)
    job.check(ids)
