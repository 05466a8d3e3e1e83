"""Topics that are deleted, and created again under the same name."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient

from beadline.testing.servers import KafkaCluster
from tests.slowness import patient

_SOON_S = patient(30)


def delete(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic, and wait until the broker has forgotten it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(_SOON_S)
    deadline_s = time.monotonic() + _SOON_S
    while topic in admin.list_topics(timeout=_SOON_S).topics:
        assert time.monotonic() < deadline_s, "the topic is still there"
        time.sleep(0.05)


def recreate(cluster: KafkaCluster, topic: str, partitions: int = 1) -> None:
    """Another topic under the old name."""
    delete(cluster, topic)
    cluster.create_topic(topic, partitions=partitions)
