"""The proxy before a Kafka cluster that knows nothing of it: no client finds a way past."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from beadline.testing.servers import KafkaCluster
from beadline.verify.kafka_proxy import KafkaProxy
from tests.slowness import patient

SOON_S = patient(30)
SHORT_S = 2.0


@pytest.fixture
def proxy(kafka_trio: KafkaCluster) -> Iterator[KafkaProxy]:
    # A server that is not there comes first: the proxy begins with one that is.
    with KafkaProxy(f"127.0.0.1:1,{kafka_trio.bootstrap_servers}") as running:
        yield running


@pytest.fixture
def topic(kafka_trio: KafkaCluster) -> str:
    name = f"test-{uuid.uuid4().hex}"
    kafka_trio.create_topic(name, 3)
    return name


def producer(proxy: KafkaProxy) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{proxy.port}",
            "transactional.id": uuid.uuid4().hex,
            "log_level": 2,
        }
    )
    made.init_transactions(SOON_S)
    return made


def send(made: Producer, topic: str, count: int) -> None:
    made.begin_transaction()
    for number in range(count):
        made.produce(topic, b"%d" % number)


def test_both_clients_see_only_proxies(kafka_trio: KafkaCluster, proxy: KafkaProxy) -> None:
    servers = f"127.0.0.1:{proxy.port}"
    brokers = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=SOON_S).brokers
    told = {f"{each.host}:{each.port}" for each in brokers.values()}
    assert len(told) == 3
    assert not told & set(kafka_trio.bootstrap_servers.split(","))
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        cluster = admin.describe_cluster()
    assert {f"{each['host']}:{each['port']}" for each in cluster["brokers"]} == told


def test_transactions_go_through(kafka_trio: KafkaCluster, proxy: KafkaProxy, topic: str) -> None:
    made = producer(proxy)
    send(made, topic, 300)
    made.commit_transaction(SOON_S)
    assert len(kafka_trio.read(topic)) == 300


def test_an_answer_that_is_held_back_was_given(
    kafka_trio: KafkaCluster, proxy: KafkaProxy, topic: str
) -> None:
    made = producer(proxy)
    send(made, topic, 30)
    assert made.flush(SOON_S) == 0
    proxy.stall_answers()
    with pytest.raises(KafkaException) as told:
        made.commit_transaction(SHORT_S)
    assert told.value.args[0].retriable()
    assert len(kafka_trio.read(topic)) == 30  # committed, and the producer does not know
    proxy.restore()
    made.commit_transaction(SOON_S)
    assert len(kafka_trio.read(topic)) == 30


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_a_fault_is_of_all_brokers(
    kafka_trio: KafkaCluster, proxy: KafkaProxy, topic: str, how: str
) -> None:
    made = producer(proxy)
    send(made, topic, 30)
    getattr(proxy, how)()
    assert made.flush(SHORT_S) > 0
    time.sleep(SHORT_S)
    assert kafka_trio.read(topic, "read_uncommitted") == []
    proxy.restore()
    made.commit_transaction(SOON_S)
    assert len(kafka_trio.read(topic)) == 30
