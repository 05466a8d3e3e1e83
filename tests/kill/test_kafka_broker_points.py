"""Kill -9 of one of three brokers while the job stands still at a crash point: at every one."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.chaos import plan
from beadline.chaos.plan import BROKER, Kill
from beadline.testing.servers import KafkaCluster
from tests.kill.kafka_chains import judged_chain

CHAIN = 2


def kills_of(points: list[str]) -> list[Kill]:
    """A broker at each of them; where it takes the death of a driver to come by, that before."""
    return [kill for point in points for kill in plan.startable([Kill(point, 1, BROKER)])]


@pytest.mark.timeout(1800)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, len(plan.OF_KAFKA), CHAIN))
def test_a_broker_dies_at_every_point(
    kafka_trio: KafkaCluster, tmp_path: Path, seed: int, first: int
) -> None:
    kills = kills_of(plan.OF_KAFKA[first : first + CHAIN])
    chain = judged_chain(kafka_trio, tmp_path, seed, kills, totals=True)
    assert chain.missed == ()
    assert chain.killed >= len(kills)
