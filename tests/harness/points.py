"""Which crash points the chains of our own kill tests visit, and in which cases.

To the kills of ``verify.plan`` they add those of a server that the job talks to: ``moment/broker``
at a random moment, and ``decide.after/broker`` while the job stands still there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from beadline.points import KAFKA_POINTS, POINTS
from beadline.verify import plan
from beadline.verify.plan import GROUP, MOMENT, ONCE, PROCESS, WORKER, Kill, ordered

# Only reached if a decided transaction is gone: after its timeout, or after a cut on the network.
_NEEDS_MISHAP = frozenset({"kafka.proof", "kafka.end_writer"})
# What a job from Kafka to Kafka, with totals in SQLite, reaches without a mishap.
OF_KAFKA = [
    name
    for name in {**POINTS, **KAFKA_POINTS}
    if name not in _NEEDS_MISHAP and not name.startswith("files.")
]


_OF_A_BROKER = "/broker"


@dataclass(frozen=True)
class BrokerKill(Kill):
    """Kill -9 of one broker, at a random moment or while the job stands still at a point."""

    def __str__(self) -> str:
        """The form that ``parse`` accepts."""
        return super().__str__().partition("/")[0] + _OF_A_BROKER

    @property
    def survived(self) -> bool:
        """The job must continue."""
        return True


def text(kills: Sequence[Kill]) -> str:
    """The form that ``parse`` reads."""
    return ",".join(map(str, kills))


def parse(points: str) -> list[Kill]:
    """Read the form of ``--points`` of our chains."""
    kills: list[Kill] = []
    for word in points.split(","):
        kill = Kill.parse(word.removesuffix(_OF_A_BROKER))
        broker = word.endswith(_OF_A_BROKER)
        kills.append(BrokerKill(kill.point, kill.occurrence) if broker else kill)
    return kills


def moments_with_brokers(seed: int, count: int) -> list[Kill]:
    """Kills at random moments, half of them of a broker: points are there for the others."""
    rng = random.Random(f"{seed} brokers")
    brokers: list[Kill] = [BrokerKill(MOMENT)] * (count - count // 2)
    kills = brokers + plan.moments(seed, count // 2, (PROCESS, WORKER, GROUP))
    rng.shuffle(kills)
    return kills


def every_case(seed: int, scope: str, points: Sequence[str] = tuple(POINTS)) -> list[Kill]:
    """Every crash point with one scope, the first time and, where there is one, the second."""
    rng = random.Random(f"{seed} every case {scope}")
    kills = [Kill(point, 1, scope) for point in points]
    kills += [Kill(point, 2, scope) for point in points if point not in ONCE]
    return ordered(kills, rng)
