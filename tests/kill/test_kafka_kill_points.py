"""Real kill -9 on a job from Kafka to Kafka, at every crash point, in the driver and in workers.

A ``read_committed`` consumer reads along all the time, and must see each input once, in order per
key, and without being held up. Each test is one chain of kills on one checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.testing.servers import KafkaCluster
from beadline.verify import plan
from beadline.verify.plan import Kill
from tests.harness.points import OF_KAFKA, parse
from tests.kill.kafka_chains import judged_chain

CHAIN = 5
# Shorter than a start of the job, and longer than its epochs.
SHORT_TIMEOUT_S = 5.0
EXPIRING = "decide.after,kafka.proof,kafka.proof/group,kafka.commit#2/group,kafka.proof,epoch.again"


def cases() -> list[tuple[str, int]]:
    """Every point with both scopes, cut into chains; which are in a chain depends on the seed."""
    return [
        (scope, first)
        for scope in (plan.PROCESS, plan.GROUP)
        for first in range(0, len(OF_KAFKA), CHAIN)
    ]


def kills_of(seed: int, scope: str) -> list[Kill]:
    """Every point, the first or the second time that it is reached."""
    drawn = plan.every_point(seed, OF_KAFKA)
    return [Kill(kill.point, kill.occurrence, scope) for kill in drawn]


@pytest.mark.timeout(1800)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scope", "first"), cases())
def test_every_point(
    kafka_cluster: KafkaCluster, tmp_path: Path, seed: int, scope: str, first: int
) -> None:
    kills = plan.startable(kills_of(seed, scope)[first : first + CHAIN])
    chain = judged_chain(kafka_cluster, tmp_path, seed, kills, totals=True)
    # A point that no process reaches is a promise that no test has tried.
    assert chain.missed == ()
    assert chain.killed >= len(kills)
    assert chain.failures == ()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_death_while_a_transaction_is_proven_lost(
    kafka_cluster: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    """Decided, and then everything was down for longer than the brokers keep a transaction."""
    kills = parse(EXPIRING)
    chain = judged_chain(
        kafka_cluster, tmp_path, seed, kills, transaction_timeout_s=SHORT_TIMEOUT_S
    )
    assert chain.missed == ()
