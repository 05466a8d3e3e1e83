"""Which kills a run makes, and in which order: a chain of children, each killed once.

A start costs seconds, most of them the JVM's, so one run makes many kills: child after child works
on the same checkpoint, and each dies somewhere else. Some places are only come by after a certain
kill (nothing is recovered unless something was decided and not finished), so these follow one that
leaves such a state; everything else is in the order of the seed.

A kill is written ``decide.before#2/group``: the second time the child comes by, with its whole
process group. ``moment/worker`` is a kill from outside, at a random moment.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from beadline.chaos.points import POINTS

MOMENT = "moment"
PROCESS, GROUP, WORKER = SCOPES = ("process", "group", "worker")

# Come by in a Python worker, which dies alone: its task is tried again and the child lives on.
IN_WORKER = frozenset({"prepare.part", "prepare.acked", "staging.written"})
# Come by once in a start at most.
ONCE = frozenset(
    {
        "claim.before",
        "claim.after",
        "recover.before",
        "recover.after",
        "start.after",
        "epoch.again",
    }
)
# Only come by if the start before was killed between its decision and Spark's own commit …
NEEDS_DECIDED = frozenset({"recover.before", "recover.after", "epoch.again"})
# … which is so after a kill at one of these, whichever time they are come by.
LEAVES_DECIDED = NEEDS_DECIDED | {
    "decide.after",
    "commit.between",
    "commit.after",
    "epoch.return",
    "files.renaming",
    "files.renamed",
    "ledger.before",
    "ledger.after",
}


@dataclass(frozen=True)
class Kill:
    """One kill of one child: where, which time, and of how much."""

    point: str
    occurrence: int = 1
    scope: str = PROCESS

    def __post_init__(self) -> None:
        """Refuse what no child could come by."""
        if self.point != MOMENT and self.point not in POINTS:
            raise ValueError(f"no crash point is named {self.point!r}; known: {sorted(POINTS)}")
        if self.scope not in SCOPES or (self.scope == WORKER and self.point != MOMENT):
            raise ValueError(f"{self.point} cannot be killed with scope {self.scope!r}")
        if self.occurrence < 1:
            raise ValueError(f"{self.point}#{self.occurrence}: the first time is #1")

    def __str__(self) -> str:
        """The form that ``parse`` reads."""
        count = f"#{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.point}{count}/{self.scope}"

    @classmethod
    def parse(cls, text: str) -> Kill:
        """Read the text form; scope and number may be left out.

        >>> str(Kill.parse("decide.before#2"))
        'decide.before#2/process'
        """
        place, _, scope = text.strip().partition("/")
        point, _, count = place.partition("#")
        return cls(point, int(count or 1), scope or PROCESS)

    @property
    def survived(self) -> bool:
        """Whether only Python workers die, and the child is to work on."""
        return self.point in IN_WORKER or self.scope == WORKER

    @property
    def leaves_decided(self) -> bool:
        """Whether an epoch is decided, and Spark not told, after this kill."""
        return self.point in LEAVES_DECIDED or (self.point, self.occurrence) == ("append.linked", 2)


def every_point(seed: int) -> list[Kill]:
    """Every crash point once; the seed chooses scope, occurrence and order."""
    rng = random.Random(f"{seed} every point")
    kills = []
    for point in POINTS:
        occurrence = 1 if point in ONCE else rng.choice((1, 2))
        kills.append(Kill(point, occurrence, rng.choice((PROCESS, GROUP))))
    return ordered(kills, rng)


def every_case(seed: int, scope: str) -> list[Kill]:
    """Every crash point with one scope, the first time and, where there is one, the second."""
    rng = random.Random(f"{seed} every case {scope}")
    kills = [Kill(point, 1, scope) for point in POINTS]
    kills += [Kill(point, 2, scope) for point in POINTS if point not in ONCE]
    return ordered(kills, rng)


def moments(seed: int, count: int) -> list[Kill]:
    """Kills from outside; half of the driver or its whole group, half of Python workers."""
    rng = random.Random(f"{seed} moments")
    scopes = [(PROCESS, WORKER, GROUP, WORKER)[number % 4] for number in range(count)]
    rng.shuffle(scopes)
    return [Kill(MOMENT, 1, scope) for scope in scopes]


def ordered(kills: Iterable[Kill], rng: random.Random) -> list[Kill]:
    """Shuffle, and put those that need a decided epoch behind one that leaves it."""
    mixed = list(kills)
    rng.shuffle(mixed)
    chain = [kill for kill in mixed if kill.point not in NEEDS_DECIDED]
    for kill in mixed:
        if kill.point in NEEDS_DECIDED:
            places = [index for index, before in enumerate(chain) if before.leaves_decided]
            chain.insert(rng.choice(places) + 1, kill)
    return chain


def startable(kills: Sequence[Kill]) -> list[Kill]:
    """A piece of a chain that can be run by itself, with a kill before it if it needs one."""
    if kills and kills[0].point in NEEDS_DECIDED:
        return [Kill("decide.after"), *kills]
    return list(kills)


def text(kills: Sequence[Kill]) -> str:
    """The form of ``--points``."""
    return ",".join(map(str, kills))


def parse(points: str) -> list[Kill]:
    """Read the form of ``--points``."""
    return [Kill.parse(kill) for kill in points.split(",") if kill.strip()]
