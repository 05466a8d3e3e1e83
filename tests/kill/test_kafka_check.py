"""The checkers of the Kafka runs on outputs that are wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from beadline.testing.servers import KafkaCluster
from tests.harness.kafka.check import check, open_transactions
from tests.harness.kafka.watch import Sequence, Watcher
from tests.harness.kafka.workload import KafkaWorkload
from tests.slowness import patient

SOON_S = patient(30.0)


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([0, 1, 2], []),
        ([0, 1, 1, 2], ["a 1 at 2 is again: 2 was due"]),
        ([0, 2, 3], ["a 2 at 1 is too early: 1 was due"]),
        ([0, 2, 1], ["a 2 at 1 is too early: 1 was due", "a 1 at 2 is again: 3 was due"]),
        ([1], ["a 1 at 0 is too early: 0 was due"]),
    ],
)
def test_the_sequence_of_a_key(numbers: list[int], wrong: list[str]) -> None:
    sequence = Sequence()
    for place, number in enumerate(numbers):
        sequence.take("a", number, str(place))
        sequence.take("b", place, "elsewhere")
    assert sequence.problems == wrong


@pytest.mark.parametrize(
    ("numbers", "lost", "duplicated", "in_order"),
    [
        ([0, 1, 2], 0, 0, True),
        ([0, 1, 1, 2], 0, 1, False),
        ([0, 2], 1, 0, False),
        ([0, 1], 1, 0, True),
        ([0, 2, 1], 0, 0, False),
        ([0, 1, 2, 3], 0, 1, True),  # never went in
    ],
)
def test_a_whole_run(
    kafka_cluster: KafkaCluster,
    tmp_path: Path,
    numbers: list[int],
    lost: int,
    duplicated: int,
    in_order: bool,
) -> None:
    servers = kafka_cluster.bootstrap_servers
    workload = KafkaWorkload(tmp_path, servers)
    workload.save()
    assert KafkaWorkload.load(tmp_path) == workload
    producer = Producer({"bootstrap.servers": servers})
    for topic, written in ((workload.source, [0, 1, 2]), (workload.target, numbers)):
        kafka_cluster.create_topic(topic)
        for number in written:
            producer.produce(topic, str(number).encode(), b"key", 0)
    assert producer.flush(SOON_S) == 0
    watcher = Watcher(servers, workload.target, [0])
    watcher.start()
    seen = watcher.wait_for(len(numbers), SOON_S, lambda: True)
    watcher.stop()
    assert seen or not in_order  # it waits no longer when something is wrong
    assert (watcher.problems == []) == in_order
    report = check(kafka_cluster, workload, watcher.problems)
    assert (report.lost, report.duplicated) == (lost, duplicated)
    assert report.exactly_once == (numbers == [0, 1, 2])


def test_what_is_open_is_seen(kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    workload = KafkaWorkload(tmp_path, kafka_cluster.bootstrap_servers)
    kafka_cluster.create_topic(workload.target)
    name = f"beadline-txn~{workload.name}~x"
    producer = Producer({"bootstrap.servers": workload.servers, "transactional.id": name})
    producer.init_transactions(SOON_S)
    assert open_transactions(kafka_cluster, workload) == []
    producer.begin_transaction()
    producer.produce(workload.target, b"0", b"key")
    assert producer.flush(SOON_S) == 0
    assert open_transactions(kafka_cluster, workload) == [name]
    producer.abort_transaction(SOON_S)
    assert open_transactions(kafka_cluster, workload) == []
