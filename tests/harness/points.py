"""Which crash points the chains of our own kill tests visit, and in which cases."""

from __future__ import annotations

import random
from collections.abc import Sequence

from beadline.points import KAFKA_POINTS, POINTS
from beadline.verify.plan import ONCE, Kill, ordered

# Only reached if a decided transaction is gone: after its timeout, or after a cut on the network.
_NEEDS_MISHAP = frozenset({"kafka.proof", "kafka.burn"})
# What a job from Kafka to Kafka, with totals in SQLite, reaches without a mishap.
OF_KAFKA = [
    name
    for name in {**POINTS, **KAFKA_POINTS}
    if name not in _NEEDS_MISHAP and not name.startswith("files.")
]


def text(kills: Sequence[Kill]) -> str:
    """The form that ``--points`` of our chains and ``plan.parse`` read."""
    return ",".join(map(str, kills))


def every_case(seed: int, scope: str, points: Sequence[str] = tuple(POINTS)) -> list[Kill]:
    """Every crash point with one scope, the first time and, where there is one, the second."""
    rng = random.Random(f"{seed} every case {scope}")
    kills = [Kill(point, 1, scope) for point in points]
    kills += [Kill(point, 2, scope) for point in points if point not in ONCE]
    return ordered(kills, rng)
