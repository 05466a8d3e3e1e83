"""``KafkaSink`` into a broker that asks who is there: by a certificate, or by SCRAM.

Both of its clients have to get in: librdkafka in workers and driver, and the driver's kafka-python,
which lists, describes and ends transactions when a new driver finds those of a dead one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once
from beadline.errors import BadSink
from beadline.sinks import KafkaSink
from beadline.testing.epochs import CRASH, run_epochs
from beadline.testing.servers import KafkaCluster
from tests.spark.jobs import read, run, write_input

pytestmark = pytest.mark.usefixtures("producers")

ROWS = 50
ZSTD = 4  # the lowest three bits of a record batch's attributes are its codec
ATTRIBUTES_AT = 22


@pytest.fixture
def cluster(guarded_kafka: KafkaCluster) -> KafkaCluster:
    return guarded_kafka


def trusting(cluster: KafkaCluster) -> dict[str, str]:
    """The options of a client that knows the broker, and has nothing to show itself."""
    assert cluster.certificates is not None
    return {"security.protocol": "ssl", "ssl.ca.location": str(cluster.certificates.ca)}


def known(cluster: KafkaCluster) -> dict[str, str]:
    """The options of a client that has a certificate."""
    assert cluster.certificates is not None
    return {
        **trusting(cluster),
        "ssl.certificate.location": str(cluster.certificates.client),
        "ssl.key.location": str(cluster.certificates.client_key),
        "compression.type": "zstd",
    }


def run_and_die_twice(spark: SparkSession, sink: KafkaSink, folder: Path) -> list[bytes]:
    """Four epochs in two parts; return the values. One death leaves a decided epoch, one not."""
    epochs: list[Any] = [
        [(f"k{row % 5}", f"{epoch * ROWS + row:0100d}") for row in range(ROWS)]
        for epoch in range(4)
    ]
    script = [epochs[0], CRASH, epochs[1], CRASH("decide.before"), epochs[2], epochs[3]]

    def build(frame: DataFrame) -> Any:
        return exactly_once(frame, str(sink.topic)).to(sink)

    schema = "key string, value string"
    ran = run_epochs(spark, build, script, folder, schema=schema, parts=2)
    assert ran.crashes == ("decide.after", "decide.before")
    return [value.encode() for epoch in epochs for _, value in epoch]


def seen(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    """What a read_committed consumer sees; doubles stay doubles."""
    return sorted((record.value for record in cluster.read(topic)), key=lambda value: value or b"")


@pytest.mark.parametrize("verified", [True, False])
def test_exactly_once_over_tls_with_a_certificate_of_the_client(
    spark: SparkSession, cluster: KafkaCluster, tmp_path: Path, verified: bool
) -> None:
    topic = f"tls-{verified}".lower()
    cluster.create_topic(topic)
    options = known(cluster)
    if not verified:  # and nobody could: the authority is not known
        del options["ssl.ca.location"]
        options["enable.ssl.certificate.verification"] = "false"
    sink = KafkaSink(topic, bootstrap_servers=cluster.tls_servers, options=options)
    values = run_and_die_twice(spark, sink, tmp_path)
    assert seen(cluster, topic) == values
    assert codec_of(cluster, topic) == ZSTD


def codec_of(cluster: KafkaCluster, topic: str) -> int:
    """How the first batch of the topic lies on the broker's disk."""
    segments = cluster.brokers[0].folder.glob(f"broker-1/data/{topic}-0/*.log")
    return min(segments).read_bytes()[ATTRIBUTES_AT] & 7


def test_without_a_certificate_there_is_a_clear_error_and_nothing_is_written(
    spark: SparkSession, cluster: KafkaCluster, tmp_path: Path
) -> None:
    cluster.create_topic("stranger")
    options = trusting(cluster)
    sink = KafkaSink("stranger", bootstrap_servers=cluster.tls_servers, options=options)
    write_input(tmp_path / "in", 1)
    rows = read(spark, tmp_path / "in").selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(BadSink, match=r"alert.*certificate.*ssl\.\*.*Nothing was written"):
        run(exactly_once(rows, "stranger").to(sink), tmp_path)
    assert cluster.end_offsets("stranger") == {0: 0}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert "beadline-stranger" not in admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_exactly_once_with_scram(
    spark: SparkSession, cluster: KafkaCluster, tmp_path: Path, mechanism: str
) -> None:
    topic = mechanism.lower()
    cluster.create_topic(topic)
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "admin",
        "sasl.password": "top-secret",
    }
    sink = KafkaSink(topic, bootstrap_servers=cluster.sasl_servers, options=options)
    values = run_and_die_twice(spark, sink, tmp_path)
    assert seen(cluster, topic) == values
