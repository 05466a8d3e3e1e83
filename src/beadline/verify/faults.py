"""Which faults a verification injects, from its seed. Pure.

A fault is written as one word, which ``--only`` accepts::

    decide.before#2/group     kill -9 at a crash point, the second time, with the JVM
    moment/worker@3           kill -9 at a random moment; the number chooses the moment
    pause:decide.after        SIGSTOP of the driver there; another takes over; then it wakes
    cut:stall_answers@1       the network to the sinks' servers, at a random moment
    expire                    killed after the decision, for longer than transactions are kept
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from beadline.errors import UsageError
from beadline.verify import plan
from beadline.verify.plan import GROUP, MOMENT, PROCESS, WORKER, Kill

PAUSE, CUT, EXPIRE = "pause", "cut", "expire"
PROOF = "kafka.proof"  # reached when a transaction has expired
CUTS = ("cut", "stall_answers", "stall")
# Where a driver that is paused and continues an hour later would do harm, if it could.
PAUSE_POINTS = ("decide.after", "decide.before", "kafka.commit", "prepare.after", "commit.after")
# Most broken sinks are found by these, so they come first: prepared and not decided; decided and
# nothing of it committed, with everything in memory gone; committed and Spark not told.
WORST = (Kill("decide.before"), Kill("decide.after", 1, GROUP), Kill("commit.after"))
# Kills at random moments, in addition to those at every point, if no number of kills is given.
MOMENTS = 6
# The share of kills at random moments, if there are enough points for the others.
_MOMENTS_SHARE = 0.25
_PAUSES_MAX = 2
_CUTS_MAX = 3

KINDS = {
    "point": "kill -9 at a crash point",
    "worker": "kill -9 of Python workers",
    MOMENT: "kill -9 of the driver at a random moment",
    PAUSE: "pause, takeover, waking",
    CUT: "network cut",
    EXPIRE: "away for longer than transactions are kept",
}


@dataclass(frozen=True)
class Fault:
    """One fault; a kill of ``plan``, or one of the other kinds."""

    what: str
    kill: Kill | None = None
    number: int = 0

    def __str__(self) -> str:
        """The form that ``parse`` accepts."""
        text = str(self.kill) if self.kill is not None and self.what != PAUSE else self.what
        if self.what == PAUSE and self.kill is not None:
            text = f"{PAUSE}:{self.kill.point}"
        elif self.what.startswith(f"{PAUSE}:"):
            text = self.what
        return f"{text}@{self.number}" if self.number else text

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read the text form, or say what is wrong with it.

        >>> str(Fault.parse("moment/worker@3"))
        'moment/worker@3'
        """
        word, _, number = text.strip().partition("@")
        try:
            count = int(number or 0)
            if word.startswith(f"{PAUSE}:"):
                return cls(PAUSE, Kill.parse(word.removeprefix(f"{PAUSE}:")), count)
            if word == EXPIRE or (word.startswith(f"{CUT}:") and word[4:] in CUTS):
                return cls(word, None, count)
            kill = Kill.parse(word)
        except ValueError as error:
            raise UsageError(f"--only {text!r} is not a fault: {error}") from None
        return cls("kill", kill, count)

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        if self.kill is None or self.what == PAUSE:
            return self.what.partition(":")[0]
        if self.kill.point == MOMENT:
            return "worker" if self.kill.scope == WORKER else MOMENT
        return "worker" if self.kill.survived else "point"

    @property
    def is_kill(self) -> bool:
        """Whether a process dies by SIGKILL."""
        return self.what == "kill"

    @property
    def epochs(self) -> int:
        """The number of undecided epochs that this fault needs."""
        if self.what == PAUSE:
            return 4
        if self.kill is None or self.kill.point == MOMENT:
            return 3
        return self.kill.occurrence + 1

    def may_follow(self, before: Fault | None) -> bool:
        """Whether it can happen after that one."""
        if self.kill is not None and self.kill.point == PROOF:
            return before is not None and before.what == EXPIRE
        if self.kill is None or not self.is_kill or not self.kill.needs_one_before:
            return True
        return before is not None and before.is_kill and self.kill.may_follow(_killed(before))


def _killed(fault: Fault) -> Kill:
    assert fault.kill is not None
    return fault.kill


def before(fault: Fault) -> Fault:
    """A fault after which this one can happen."""
    if _killed(fault).point == PROOF:
        return Fault(EXPIRE)
    kill = plan.startable([_killed(fault)])[0]
    return Fault("kill", kill)


def parse(text: str) -> list[Fault]:
    """Read the form of ``--only``."""
    found = [Fault.parse(word) for word in text.split(",") if word.strip()]
    if not found:
        raise UsageError("--only is empty: give a fault, such as decide.before, as verify lists it")
    return found


def planned(
    seed: int,
    kills: int | None,
    points: Collection[str],
    *,
    network: bool,
    expires: bool,
) -> list[Fault]:
    """Every fault of a verification, in order, without the points that do not fit into ``kills``.

    A driver is killed at every point if the number allows, and at random moments; pauses and cuts
    are added to that. The seed decides the order, except that the worst come first. Without a
    number there are as many kills as needed.
    """
    kills = len(points) + MOMENTS if kills is None else kills
    rng = random.Random(f"{seed} verify")
    first = [Fault("kill", kill) for kill in WORST if kill.point in points][:kills]
    proof = [Fault("kill", Kill(PROOF))] if PROOF in points and kills > len(first) else []
    points = [point for point in points if point != PROOF]
    kills -= len(first) + len(proof)
    more = kills - (len(points) - len(first))  # than are needed for every point
    moments = more if more > 1 else min(kills, max(2, round(kills * _MOMENTS_SHARE)))
    chosen = _chosen(rng, set(points) - {kill.point for kill in WORST}, kills - moments)
    chain = _chain(seed, chosen, rng)
    others = [
        Fault("kill", kill, number)
        for number, kill in enumerate(plan.moments(seed, moments, (WORKER, GROUP, PROCESS)), 1)
    ]
    pausing = [point for point in PAUSE_POINTS if point in points]
    first += [Fault(PAUSE, Kill(point)) for point in pausing[:1]]
    pauses = rng.sample(pausing[1:], min(len(pausing[1:]), _PAUSES_MAX - 1))
    others += [Fault(PAUSE, Kill(point)) for point in pauses]
    others += [
        Fault(f"{CUT}:{how}", None, n) for n, how in enumerate(CUTS[:_CUTS_MAX], 1) if network
    ]
    last = [Fault(EXPIRE), *proof] if expires else proof
    return first + _mixed(chain, others, rng) + last


def _chosen(rng: random.Random, points: Collection[str], count: int) -> list[str]:
    """All points, or a random choice of them."""
    if len(points) <= count:
        return sorted(points)
    return rng.sample(sorted(points), max(0, count))


def _chain(seed: int, points: Collection[str], rng: random.Random) -> list[Fault]:
    """A kill at each of them; one that needs another before it follows one, if there is one."""
    usual = [point for point in points if not Kill(point).needs_one_before]
    chain = plan.every_point(seed, usual)
    for point in points:
        kill = Kill(point, 1, rng.choice((PROCESS, GROUP)))
        if kill.needs_one_before:
            places = [n for n, before in enumerate(chain, 1) if kill.may_follow(before)]
            chain.insert(rng.choice(places or [len(chain)]), kill)
    return [Fault("kill", kill) for kill in chain]


def _mixed(chain: Sequence[Fault], others: Sequence[Fault], rng: random.Random) -> list[Fault]:
    """Insert the others into a chain, but not between two faults that belong together."""
    mixed = list(chain)
    for fault in others:
        places = [
            index
            for index in range(len(mixed) + 1)
            if index == len(mixed) or mixed[index].may_follow(None)
        ]
        mixed.insert(rng.choice(places), fault)
    return mixed
