"""Kill -9 of one of three brokers while the job pauses at a crash point: at every one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from beadline.sinks.kafka.client import connect
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from beadline.testing.servers.process import ServerProcess
from beadline.verify import plan
from beadline.verify.child import CHILD_TIMEOUT_S, Child
from beadline.verify.plan import Kill
from tests.harness.kafka.run import KafkaRun, asleep
from tests.harness.points import OF_KAFKA, BrokerKill
from tests.kill.kafka_chains import fall_asleep, judged_chain, judged_run, wake
from tests.slowness import patient

CHAIN = 2
SOON_S = patient(30.0)
EXPIRY_S = 8.0  # of transactions, where one is to expire: longer than two brokers need to take over


def kills_of(points: list[str]) -> list[Kill]:
    """A broker at each of them; where only a driver's death leads there, that first."""
    return [kill for point in points for kill in plan.startable([BrokerKill(point)])]


@pytest.mark.timeout(1800)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, len(OF_KAFKA), CHAIN))
def test_a_broker_dies_at_every_point(
    kafka_trio: KafkaCluster, tmp_path: Path, seed: int, first: int
) -> None:
    kills = kills_of(OF_KAFKA[first : first + CHAIN])
    chain = judged_chain(kafka_trio, tmp_path, seed, kills, totals=True)
    assert chain.missed == ()
    assert chain.killed >= len(kills)


def leader(cluster: KafkaCluster, topic: str) -> ServerProcess:
    """The broker that readers of a topic's first partition ask."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    number: int = admin.list_topics(topic, timeout=SOON_S).topics[topic].partitions[0].leader
    return cluster.brokers[number - 1]


def coordinator(run: KafkaRun, names: Collection[str]) -> ServerProcess:
    """The broker that knows most of these transactions."""
    known = connect(KafkaSettings(run.cluster.bootstrap_servers)).admin.list_transactions()
    counts: dict[int, int] = {
        broker: sum(one.transactional_id in names for one in found)
        for broker, found in known.items()
    }
    return run.cluster.brokers[max(counts, key=lambda broker: counts[broker]) - 1]


def kinds(child: Child) -> list[str]:
    return [line["kind"] for line in child.events]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_broker_dies_while_a_transaction_is_proven_lost(
    kafka_trio: KafkaCluster, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    """Decided, expired; the broker with the markers dies when the next start is about to look."""
    way = {"totals": True, "transaction_timeout_s": EXPIRY_S}
    with judged_run(kafka_trio, tmp_path, request, seed, **way) as run:
        assert run.kill(Kill("decide.after")) == 1
        run.wait_for_expiry()
        mark = run.arm("kafka.proof", scope="pause")
        child = run.start()
        assert run.wait_until(lambda: asleep(mark) > 0, CHILD_TIMEOUT_S)
        run.disarm()
        victim = leader(kafka_trio, f"beadline-{run.workload.name}")
        victim.kill()
        wake(asleep(mark))
        run.expect_news()
        victim.restart()
        kafka_trio.wait_ready()
        run.expect_news()
        assert child.alive
        assert "replayed" in kinds(child)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_second_broker_dies_while_a_writer_is_ended(
    kafka_trio: KafkaCluster, tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    """A commit was not answered, for its coordinator died; nor is what makes it safe (rule 17)."""
    with judged_run(kafka_trio, tmp_path, request, seed) as run:
        sleeper = fall_asleep(run, "kafka.commit")
        child = run.running()
        names = run.open_transactions()
        first = coordinator(run, names)
        first.kill()
        mark = run.arm("kafka.end_writer", scope="pause")
        wake(sleeper)
        assert run.wait_until(lambda: asleep(mark) > 0, CHILD_TIMEOUT_S)
        run.disarm()
        first.restart()
        kafka_trio.wait_ready()
        second = coordinator(run, names)
        second.kill()
        wake(asleep(mark))
        run.expect_news()
        second.restart()
        kafka_trio.wait_ready()
        run.expect_news()
        assert child.alive
        assert "replayed" not in kinds(child)
