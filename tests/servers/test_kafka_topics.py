"""Topics that are not there, or not yet: what is waited for, refused, made, or an error."""

from __future__ import annotations

import threading
import time
import uuid
from functools import partial

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from beadline.ids import QueryId
from beadline.sink import Part
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_refused import PART, note, refused

pytestmark = pytest.mark.usefixtures("producers")


def test_a_topic_that_is_just_being_made(kafka_cluster: KafkaCluster) -> None:
    """A dead-letter record is final, so a topic that is not known yet is waited for."""
    name = f"late-{uuid.uuid4().hex[:8]}"
    later = threading.Timer(1, kafka_cluster.create_topic, [name])
    later.start()
    sink = KafkaSink(None, bootstrap_servers=kafka_cluster.bootstrap_servers)
    assert refused(sink, [{"value": "v", "topic": name}]) == []
    later.join()


def test_topics_that_do_not_exist_are_waited_for_once(kafka_cluster: KafkaCluster) -> None:
    """Four of them not four times as long; and in the next epoch only for a moment."""
    options = {"topic.metadata.propagation.max.ms": 4000}
    sink = KafkaSink(None, bootstrap_servers=kafka_cluster.bootstrap_servers, options=options)
    names = [f"none-{number}-{uuid.uuid4().hex[:6]}" for number in range(4)]
    batch = pa.RecordBatch.from_pydict({"value": ["v"] * 4, "topic": names})
    for at_least_s, below_s in ((4, 16), (0.5, 4)):
        reasons: list[str] = []
        part = Part(PART, refuse=partial(note, reasons))
        began_s = time.monotonic()
        sink.publish(iter([batch]), part)
        assert reasons == [f"topic {name!r} does not exist" for name in names]
        assert at_least_s <= time.monotonic() - began_s < below_s


def test_the_sinks_own_topic_that_is_gone_is_an_error(kafka_cluster: KafkaCluster) -> None:
    options = {"topic.metadata.propagation.max.ms": 300}
    sink = KafkaSink("gone", bootstrap_servers=kafka_cluster.bootstrap_servers, options=options)
    with pytest.raises(OSError, match="topic 'gone' does not exist; it could be used when"):
        refused(sink, [{"value": "v"}])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_control_topic_has_every_replica_though_a_broker_is_down(
    kafka_trio: KafkaCluster, index: int
) -> None:
    """One that is down at the first start must not be missing for good.

    One of the three is the controller: then creating has to wait until another is elected.
    """
    name = f"job-{uuid.uuid4().hex[:8]}"
    kafka_trio.create_topic(f"{name}-out")
    sink = KafkaSink(f"{name}-out", kafka_trio.bootstrap_servers)
    victim = kafka_trio.brokers[index]
    victim.kill()
    try:
        sink.open(QueryId(name, "a" * 32, "file:/x"), "out")
        admin = AdminClient({"bootstrap.servers": kafka_trio.bootstrap_servers})
        found = admin.list_topics(timeout=10).topics[sink.control_topic_of(name)]
    finally:
        victim.restart()
        kafka_trio.wait_ready()
    assert len(found.partitions[0].replicas) == 3
