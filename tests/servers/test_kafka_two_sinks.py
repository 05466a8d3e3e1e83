"""Several Kafka sinks of one query, also under names that it has no more.

Each knows all of the query's open transactions on its cluster (rule 27); the coordinator lets it
sweep its own, and those of names that are gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.ids import PartId, QueryId
from beadline.sink import Part
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.spark.jobs import read, run, run_and_die, write_input


@pytest.fixture
def names(kafka_cluster: KafkaCluster) -> Iterator[tuple[str, str]]:
    found = tuple(f"{side}-{uuid.uuid4().hex[:8]}" for side in ("left", "right"))
    for name in found:
        kafka_cluster.create_topic(name)
    yield found[0], found[1]
    pool().close()


def sink(cluster: KafkaCluster, topic: str, control: str | None = None) -> KafkaSink:
    return KafkaSink(topic, bootstrap_servers=cluster.bootstrap_servers, control_topic=control)


def test_each_knows_all(kafka_cluster: KafkaCluster, names: tuple[str, str]) -> None:
    """Also where their control topics differ, so that one cannot read the other's markers.

    Writers are another matter: at its end each fences its own.
    """
    query = QueryId(f"two-{uuid.uuid4().hex[:8]}", "a" * 32, "file:/two")
    sinks = [sink(kafka_cluster, name, f"{name}-markers") for name in names]
    ids = []
    for number, one in enumerate(sinks):
        one.open(query, names[number])
        id_ = PartId(query.name, query.incarnation, names[number], 1, 0, 0, 0)
        rows = pa.RecordBatch.from_pydict({"value": ["v"]})
        assert one.prepare(iter([rows]), Part(id_, slot=0)) is not None
        ids.append(id_)
    for number, one in enumerate(sinks):
        found = {part.id.sink: part for part in one.in_doubt(query, "out")}
        assert set(found) == set(names)
        assert found[names[number]].id == ids[number]
    sinks[0].close(query, names[0])()
    (left,) = sinks[0].in_doubt(query, "out")
    assert left.id.sink == names[1]
    sinks[0].abort([left])  # of another sink: it is on the same cluster
    assert list(sinks[1].in_doubt(query, "out")) == []


def test_a_sink_of_another_name_leaves_no_orphan(
    spark: SparkSession, kafka_cluster: KafkaCluster, names: tuple[str, str], tmp_path: Path
) -> None:
    """Readers would stand before it until the broker aborts it, a quarter of an hour later."""
    ids = write_input(tmp_path / "in", 2)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    stream = exactly_once(rows, names[0])
    before = stream.to(sink(kafka_cluster, names[0], f"{names[0]}-markers"), name="before")
    run_and_die(before, tmp_path, "prepare.after")
    client = connect(KafkaSettings(kafka_cluster.bootstrap_servers))
    assert [name for name in client.list(OPEN_STATES) if names[0] in name]
    run(stream.to(sink(kafka_cluster, names[0]), name="after"), tmp_path)
    assert [name for name in client.list(OPEN_STATES) if names[0] in name] == []
    assert sorted(int(r.value or b"") for r in kafka_cluster.read(names[0])) == ids


@pytest.mark.parametrize("point", ["prepare.between", "decide.after", "kafka.commit"])
def test_a_death_and_a_restart(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    names: tuple[str, str],
    tmp_path: Path,
    point: str,
) -> None:
    ids = write_input(tmp_path / "in", 3)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    stream = exactly_once(rows, names[0])
    stream = stream.to(sink(kafka_cluster, names[0]))
    stream = stream.to(sink(kafka_cluster, names[1], f"{names[1]}-markers"))
    run_and_die(stream, tmp_path, point, times=2)
    run(stream, tmp_path)
    for name in names:
        assert sorted(int(r.value or b"") for r in kafka_cluster.read(name)) == ids
