"""`beadline verify` on jobs with servers: from Kafka to Kafka, and into PostgreSQL."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from beadline.testing.servers import KafkaCluster, PostgresServer
from tests.kill.test_verify import kinds_of, verify
from tests.slowness import patient
from tests.spark.jobs import write_input

KAFKA_JOB = """
from beadline import exactly_once, sources
from beadline.sinks import KafkaSink
SERVERS = "{servers}"
def job(spark):
    frame = sources.kafka(spark, bootstrap_servers=SERVERS, topic="{name}-in")
    rows = frame.where("topic = '{name}-in'").selectExpr("key", "value")
    return exactly_once(rows, "{name}").to(
        KafkaSink("{name}-out", bootstrap_servers=SERVERS), name="out"
    )
"""
POSTGRES_JOB = """
from pathlib import Path
from beadline import exactly_once, sources
from beadline.sinks import PostgresSink
HERE = Path(__file__).parent
DSN = "{dsn}"
def totals(frame):
    return frame.groupBy("k").agg({{"v": "sum"}}).toDF("k", "v")
def job(spark):
    rows = sources.files(spark, str(HERE / "in"), format="json", schema="id long, k string, v long")
    stream = exactly_once(rows, "shop").to(PostgresSink(DSN, "rows", "{schema}"), name="rows")
    sums = PostgresSink(DSN, "totals", "{schema}", mode="add", key="k")
    return stream.to(sums, rows=totals, name="totals")
"""
RECORDS = 240
TIMEOUT_S = patient(20)


@pytest.mark.sampled(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "only",
    [
        "kafka.flushed,decide.after/group,kafka.answered",
        "pause:kafka.commit",
        "expire,kafka.proof",
        "cut:stall_answers@1,kafka.commit,cut:cut@2",
    ],
)
def test_from_kafka_to_kafka(
    kafka_cluster: KafkaCluster, tmp_path: Path, seed: int, only: str
) -> None:
    from confluent_kafka import Producer

    name = f"verify-{uuid.uuid4().hex[:8]}"
    servers = kafka_cluster.bootstrap_servers
    kafka_cluster.create_topic(f"{name}-in", 2)
    kafka_cluster.create_topic(f"{name}-out", 3)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce(f"{name}-in", str(number).encode(), f"key-{number % 7}".encode())
    assert producer.flush(30) == 0
    job = tmp_path / "job.py"
    job.write_text(KAFKA_JOB.format(servers=servers, name=name))
    found = verify(job, "--seed", str(seed), "--only", only, "--epochs", "8", code=0)
    assert found["rows"] == {"out": RECORDS}
    assert [fault["verdict"] for fault in found["faults"]] == ["exactly-once"] * len(
        only.split(",")
    )
    assert [bool(fault["hits"]) for fault in found["faults"]] == [True] * len(only.split(","))
    assert not [note for note in found["notes"] if "network" in note]
    assert kafka_cluster.read(f"{name}-out") == []
    deadline_s = time.monotonic() + TIMEOUT_S
    while (there := _topics(servers, name)) != {f"{name}-in", f"{name}-out"}:
        assert time.monotonic() < deadline_s, there  # a topic is deleted a moment after the answer
        time.sleep(0.2)


def _topics(servers: str, name: str) -> set[str]:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined, unused-ignore]

    listed = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics
    return {topic for topic in listed if name in topic}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "only",
    ["decide.after/group,cut:stall_answers@1", "commit.between,cut:cut@2", "pause:decide.after"],
)
def test_into_postgres(
    postgres_server: PostgresServer, tmp_path: Path, seed: int, only: str
) -> None:
    schema = f"verify_{uuid.uuid4().hex[:8]}"
    with closing(postgres_server.connect()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(
            f"CREATE TABLE {schema}.rows (number serial, id bigint, k text, v bigint)"
        )
        connection.execute(f"CREATE TABLE {schema}.totals (k text PRIMARY KEY, v bigint)")
    write_input(tmp_path / "in", 8)
    job = tmp_path / "job.py"
    job.write_text(POSTGRES_JOB.format(dsn=postgres_server.dsn, schema=schema))
    found = verify(job, "--seed", str(seed), "--only", only, code=0)
    assert found["rows"]["rows"] == 80
    assert [bool(fault["hits"]) for fault in found["faults"]] == [True] * len(only.split(","))
    assert kinds_of(found) == set()
    with closing(postgres_server.connect()) as connection:
        ask = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
        there = {name for (name,) in connection.execute(ask, (schema,)).fetchall()}
        left = connection.execute(f"SELECT count(*) FROM {schema}._beadline_ledger").fetchone()
        count = connection.execute(f"SELECT count(*) FROM {schema}.rows").fetchone()
    assert {name for name in there if "beadline" not in name} == {"rows", "totals"}
    assert (count, left) == ((0,), (0,))
