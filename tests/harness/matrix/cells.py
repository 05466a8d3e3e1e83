"""Which cells there are, and what one of them has shown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from beadline.demo.check import compare_rows
from beadline.sink import Guarantee

SOURCES = ("files", "kafka", "rate", "socket", "journaled")
SINKS = ("files", "sqlite", "kafka", "postgres", "mysql", "redis", "hbase", "write_ahead")
FUNCTIONS = ("exactly_once", "at_least_once")
# Sinks in which a row that is written again lies over itself, so that nobody can see it twice.
OVERWRITING = frozenset({"hbase"})


@dataclass(frozen=True)
class Cell:
    """One source into one sink by one function."""

    source: str
    sink: str
    function: str

    def __str__(self) -> str:
        """The form on the command line: ``files/sqlite/exactly_once``."""
        return f"{self.source}/{self.sink}/{self.function}"

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Read that form; raises ValueError with what is known."""
        words = text.split("/")
        known = (SOURCES, SINKS, FUNCTIONS)
        if len(words) != 3 or any(w not in k for w, k in zip(words, known, strict=True)):
            raise ValueError(f"{text!r} is not source/sink/function of {known}")
        return cls(*words)


def every_cell() -> list[Cell]:
    """All of them, in the order of the table."""
    return [Cell(a, b, c) for a in SOURCES for b in SINKS for c in FUNCTIONS]


@dataclass(frozen=True)
class Result:
    """What one cell promised and what was seen of it.

    ``delivered`` is what the source had delivered: what it sent, or what is in the journal.
    ``window`` counts what was sent and is not in the journal, before which nothing is promised.
    """

    cell: Cell
    promised: Guarantee
    seed: int
    kills: tuple[str, ...]
    delivered: int
    lost: int
    duplicated: int
    seconds: float
    window: int = 0
    problem: str = ""

    @property
    def observed(self) -> str:
        """The level that was seen, by its name; both lost and twice is none of the three."""
        if self.problem:
            return "failed"
        if self.lost:
            return str(Guarantee.AT_MOST_ONCE) if not self.duplicated else "lost and twice"
        return str(Guarantee.AT_LEAST_ONCE if self.duplicated else Guarantee.EXACTLY_ONCE)

    @property
    def held(self) -> bool:
        """Whether no more was promised than was seen."""
        if self.problem:
            return False
        if self.promised is Guarantee.EXACTLY_ONCE:
            return not self.lost and not self.duplicated
        if self.promised is Guarantee.AT_MOST_ONCE:
            return not self.duplicated
        return not self.lost

    @property
    def note(self) -> str:
        """What a reader of the table would ask."""
        if self.problem:
            return self.problem
        words = []
        if self.promised is Guarantee.AT_LEAST_ONCE and not self.duplicated:
            words.append(_UNSEEN_OVER if self.cell.sink in OVERWRITING else _UNSEEN)
        if self.promised is Guarantee.AT_MOST_ONCE and not self.lost:
            words.append("nothing was in the socket when it was killed")
        if self.window:
            words.append(f"{self.window} lines were sent and not in the journal yet")
        return "; ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        found = asdict(self)
        found |= {"cell": str(self.cell), "promised": str(self.promised)}
        return {**found, "observed": self.observed, "held": self.held, "note": self.note}


_UNSEEN = "tried: killed after rows were shown and before Spark knew; none showed twice"
_UNSEEN_OVER = "tried: killed after rows were shown; they were written again over themselves"


def count(shown: Iterable[int], delivered: Iterable[int]) -> tuple[int, int]:
    """How many rows are lost, and how many show more than once; strangers count as twice."""
    found = compare_rows(Counter(set(delivered)), Counter(shown))
    return found.lost, found.duplicated
