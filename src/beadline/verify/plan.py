"""Which kills a run makes, and in which order: a chain of children, each killed once.

A start costs seconds, most of them the JVM's, so one run makes many kills: child after child works
on the same checkpoint, and each dies at another point. Some points are reached only after a certain
kill (nothing is recovered unless something was decided and not finished), so these follow one that
leaves such a state; everything else is in the order of the seed.

A kill is written ``decide.before#2/group``: the second time the child reaches the point, with its
whole process group. ``moment/worker`` is a kill from outside, at a random moment.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from beadline.points import EVERY_POINT, POINTS, CrashOrder

MOMENT = "moment"
PROCESS, GROUP, WORKER = SCOPES = ("process", "group", "worker")

# Reached in a Python worker, which dies alone: its task is tried again and the child continues.
IN_WORKER = frozenset(
    {
        "prepare.part",
        "prepare.acked",
        "staging.written",
        "kafka.begun",
        "kafka.sent",
        "kafka.flushed",
        "kafka.prepared",
    }
)
# Reached at most once in a start.
ONCE = frozenset(
    {
        "claim.before",
        "claim.after",
        "recover.before",
        "recover.after",
        "start.after",
        "epoch.again",
        "kafka.fence",
        "kafka.proof",
    }
)
# Only reached if the previous start was killed between its decision and Spark's own commit …
NEEDS_DECIDED = frozenset({"recover.before", "recover.after", "epoch.again"})
# … as it is after a kill at one of these, whichever time they are reached.
LEAVES_DECIDED = NEEDS_DECIDED | {
    "decide.after",
    "commit.between",
    "commit.after",
    "epoch.return",
    "files.begun",
    "files.moving",
    "files.renaming",
    "files.renamed",
    "ledger.before",
    "ledger.after",
    "kafka.commit",
    "kafka.answered",
    "kafka.end_writer",
    "kafka.proof",
}
# Only reached if the previous start left something prepared and undecided in Kafka …
NEEDS_ORPHANS = frozenset({"kafka.fence"})
# … as it does when it is killed at one of these.
LEAVES_ORPHANS = NEEDS_ORPHANS | {"prepare.between", "prepare.after", "decide.before"}


@dataclass(frozen=True)
class Kill:
    """One kill of one child: where, which time, and of how much."""

    point: str
    occurrence: int = 1
    scope: str = PROCESS

    def __post_init__(self) -> None:
        """Refuse what no child can reach."""
        if self.point != MOMENT and self.point not in EVERY_POINT:
            near = difflib.get_close_matches(self.point, EVERY_POINT, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(sorted(EVERY_POINT))
            raise ValueError(f"no crash point is named {self.point!r}.{meant} Known are: {known}")
        scopes = SCOPES if self.point == MOMENT else (PROCESS, GROUP)
        if self.scope not in scopes:
            raise ValueError(
                f"{self.point} cannot be killed with scope {self.scope!r}. "
                f"Known are: {', '.join(scopes)}"
            )
        if self.occurrence < 1:
            raise ValueError(f"{self.point}#{self.occurrence}: the first time is #1")

    def __str__(self) -> str:
        """The form that ``parse`` accepts."""
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

    def order(self, mark: Path, scope: str = "") -> CrashOrder:
        """The order by which a child kills itself, or stops itself with ``pause``."""
        own = GROUP if self.scope == GROUP else PROCESS
        return CrashOrder(self.point, self.occurrence, scope or own, str(mark))

    @property
    def survived(self) -> bool:
        """Whether only Python workers die, and the child must continue."""
        return self.point in IN_WORKER or self.scope == WORKER

    @property
    def leaves_decided(self) -> bool:
        """Whether an epoch is decided, and Spark not told, after this kill."""
        if self.survived:
            return False
        return self.point in LEAVES_DECIDED or (self.point, self.occurrence) == ("append.linked", 2)

    def may_follow(self, before: Kill) -> bool:
        """Whether a child that was started after that kill reaches this point."""
        if self.point in NEEDS_DECIDED:
            return before.leaves_decided
        return self.point not in NEEDS_ORPHANS or before.point in LEAVES_ORPHANS

    @property
    def needs_one_before(self) -> bool:
        """Whether it is reached only after certain other kills."""
        return self.point in NEEDS_DECIDED | NEEDS_ORPHANS


def every_point(seed: int, points: Iterable[str] = POINTS) -> list[Kill]:
    """Every crash point once; the seed chooses scope, occurrence and order."""
    rng = random.Random(f"{seed} every point")
    kills = []
    for point in points:
        occurrence = 1 if point in ONCE else rng.choice((1, 2))
        kills.append(Kill(point, occurrence, rng.choice((PROCESS, GROUP))))
    return ordered(kills, rng)


def moments(
    seed: int, count: int, among: Sequence[str] = (PROCESS, WORKER, GROUP, WORKER)
) -> list[Kill]:
    """Kills from outside; half of the driver or its whole group, half of Python workers."""
    rng = random.Random(f"{seed} moments")
    scopes = [among[number % len(among)] for number in range(count)]
    rng.shuffle(scopes)
    return [Kill(MOMENT, 1, scope) for scope in scopes]


def ordered(kills: Iterable[Kill], rng: random.Random) -> list[Kill]:
    """Shuffle, and put kills that need another before them after a suitable one."""
    mixed = list(kills)
    rng.shuffle(mixed)
    chain = [kill for kill in mixed if not kill.needs_one_before]
    for kill in mixed:
        if kill.needs_one_before:
            places = [index for index, before in enumerate(chain) if kill.may_follow(before)]
            chain.insert(rng.choice(places) + 1, kill)
    return chain


def startable(kills: Sequence[Kill]) -> list[Kill]:
    """A piece of a chain that can be run by itself, with a kill before it if it needs one."""
    for before in (Kill("decide.after"), Kill("decide.before")):
        if kills and kills[0].needs_one_before and kills[0].may_follow(before):
            return [before, *kills]
    return list(kills)
