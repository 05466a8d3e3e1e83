"""The report on a query: its level, what limits it, why, and what would raise it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from beadline.sink import Guarantee


class FindingKind(Enum):
    """What a finding is about."""

    FUNCTION = "function"
    SOURCE = "source"
    STATE = "state"
    PLAN = "plan"
    SETTING = "setting"
    ROWS = "rows="
    SINK = "sink"


@dataclass(frozen=True)
class Finding:
    """One part of a query, what it can guarantee, and why.

    ``level`` is the most that a query with it can promise. ``cure`` is what would raise it, or,
    where the level is not lowered, what would avoid the problem in ``why``.
    ``allowed`` says that the user has accepted it: ``.to(sink, allow=…)``.
    """

    kind: FindingKind
    part: str
    level: Guarantee
    why: str
    cure: str = ""
    warning: bool = False
    allowed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The finding for programs."""
        return {
            "kind": self.kind.value,
            "part": self.part,
            "level": str(self.level),
            "why": self.why,
            "cure": self.cure,
            "warning": self.warning,
            "allowed": self.allowed,
        }


@dataclass(frozen=True)
class Report:
    """What one query promises, from its source to its sinks."""

    query: str
    asked: Guarantee
    findings: tuple[Finding, ...]
    problems: tuple[str, ...] = ()  # what start() refuses whatever the level: settings, checkpoint

    @property
    def level(self) -> Guarantee:
        """The weakest part's."""
        return min(found.level for found in self.findings)

    @property
    def limits(self) -> tuple[Finding, ...]:
        """The parts that limit the level; none if it is the highest there is."""
        level = self.level
        if level is max(Guarantee):
            return ()
        return tuple(found for found in self.findings if found.level is level)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Remarks that do not lower the level, and what cannot be determined."""
        return tuple(found for found in self.findings if found.warning)

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The parts for which ``start()`` refuses: below the function's name, and not allowed."""
        return tuple(f for f in self.findings if f.level < self.asked and not f.allowed)

    @property
    def refused(self) -> bool:
        """Whether ``start()`` would refuse the query."""
        return bool(self.refusals or self.problems)

    def to_dict(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "query": self.query,
            "asked": str(self.asked),
            "level": str(self.level),
            "refused": self.refused,
            "problems": list(self.problems),
            "limits": [found.to_dict() for found in self.limits],
            "warnings": [found.to_dict() for found in self.warnings],
            "findings": [found.to_dict() for found in self.findings],
        }

    def __str__(self) -> str:
        """The report for people, in plain text."""
        return "\n".join(self._lines())

    def _lines(self) -> Sequence[str]:
        lines = [f"query {self.query!r} is {self.level}"]
        if self.level < self.asked:
            lines[0] += f", but was meant to be {self.asked}"
        lines += [f"start() will refuse it: {problem}" for problem in self.problems]
        for title, findings in (
            ("limited by", self.limits),
            ("know that", [found for found in self.warnings if found not in self.limits]),
            ("because", [f for f in self.findings if f not in self.limits and not f.warning]),
        ):
            if findings:
                lines.append(f"{title}:")
            for found in findings:
                lines.append(f"  {found.part} ({found.level}): {found.why}")
                if found.cure:
                    lines.append(f"    → {found.cure}")
        return lines
