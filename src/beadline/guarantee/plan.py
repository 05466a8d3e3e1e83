"""Expressions that a replay would change, and what that means for the query.

Exactly-once itself does not need a deterministic plan: an epoch that was not decided is discarded
as a whole and computed again. It matters where rows that were *decided* have to be computed again:
a part that the outside system lost, and the state of an epoch that a dead driver decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from beadline.guarantee.report import Finding, FindingKind
from beadline.sink import Guarantee

# By the class names of Spark's expressions. They depend on the partition, not on chance: they are
# the same as long as an epoch has the same parts, which is checked when it is redelivered.
POSITIONAL = frozenset(
    {
        "InputFileBlockLength",
        "InputFileBlockStart",
        "InputFileName",
        "MonotonicallyIncreasingID",
        "SparkPartitionID",
    }
)
# In the stream's own plan Spark puts the epoch's time from the checkpoint in their place; in the
# batch code of ``rows=`` it is the time of the run.
CLOCKS = frozenset({"CurrentDate", "CurrentTimestamp", "LocalTimestamp", "Now"})


@dataclass(frozen=True)
class ExpressionFacts:
    """An expression of a plan: what it is, and whether it says itself that it is deterministic.

    ``chance`` names the non-deterministic functions that a Python function calls; ``unreadable``
    says that its code could not be inspected.
    """

    name: str
    text: str
    deterministic: bool = True
    chance: tuple[str, ...] = ()
    unreadable: bool = False


@dataclass(frozen=True)
class PlanFacts:
    """The expressions of one plan: the stream's own, or that of a sink's ``rows=``."""

    part: str
    kind: FindingKind
    expressions: tuple[ExpressionFacts, ...] = ()

    def by_chance(self) -> Iterator[str]:
        """Yield descriptions of what would be different in a replay."""
        for seen in self.expressions:
            if seen.chance:
                calls = ", ".join(f"{name}()" for name in seen.chance)
                yield f"{seen.text}, which calls {calls}"
            elif not seen.deterministic and seen.name not in POSITIONAL:
                yield seen.text
            elif seen.name in CLOCKS and self.kind is FindingKind.ROWS:
                yield f"{seen.text}, which differs each time rows= runs"


@dataclass(frozen=True)
class Circumstances:
    """The facts about the rest of the query that decide whether non-determinism does harm."""

    asked: Guarantee
    stateful: bool
    expiring: tuple[str, ...]  # sinks whose prepared parts the server may discard
    shared: bool = False  # whether several sinks read the rows of this plan


def judge_plan(plan: PlanFacts, about: Circumstances) -> Iterator[Finding]:
    """Yield a warning if the plan is non-deterministic, and say where it would show."""
    found = list(dict.fromkeys(plan.by_chance()))
    if found:
        why = f"a replay gives different values for {'; '.join(found)}. {_harm(plan, about)}"
        cure = "add the value to the rows upstream, or derive it from the rows' data"
        yield Finding(plan.kind, plan.part, Guarantee.EXACTLY_ONCE, why, cure, warning=True)
    for seen in plan.expressions:
        if seen.unreadable:
            yield Finding(
                plan.kind,
                plan.part,
                Guarantee.EXACTLY_ONCE,
                f"the code of {seen.text} could not be inspected: it is not known whether it is "
                "deterministic",
                warning=True,
            )


def _harm(plan: PlanFacts, about: Circumstances) -> str:
    if about.asked is not Guarantee.EXACTLY_ONCE:
        return "Rows that show again after a crash may then have a different value"
    harms = []
    if about.expiring:
        names = ", ".join(about.expiring)
        harms.append(f"if {names} loses a decided part, the query stops instead of replaying it")
    if about.stateful and plan.kind is FindingKind.PLAN:
        harms.append("the state after a crash may differ from the rows that were committed")
    if about.shared and plan.kind is FindingKind.PLAN:
        harms.append(
            "if an executor is lost while the sinks are prepared, the epoch fails and is "
            "redelivered, because they could hold different rows"
        )
    if not harms:
        return "That does no harm here: rows are decided once, and nothing decided is recomputed"
    return "So " + "; and ".join(harms)
