"""What each source can guarantee. A table, not a chain of ifs: `declare` adds to it.

A source is exactly-once if Spark can read the same rows again: the offsets of an epoch are in the
checkpoint, and reading them twice gives the same rows. It is at-most-once if rows are gone once
they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from beadline.guarantee.report import Finding, FindingKind
from beadline.sink import Guarantee

EXACTLY, AT_LEAST, AT_MOST = (
    Guarantee.EXACTLY_ONCE,
    Guarantee.AT_LEAST_ONCE,
    Guarantee.AT_MOST_ONCE,
)


@dataclass(frozen=True)
class SourceFacts:
    """A source as Spark's plan shows it; the names of ``options`` are in lower case."""

    name: str
    where: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """Its name in the report."""
        return f"source {self.name}" + (f" {self.where}" if self.where else "")

    def option(self, name: str, default: str) -> str:
        """An option's value in lower case."""
        return str(self.options.get(name.lower(), default)).strip().lower()


JudgeSource = Callable[[SourceFacts], Iterator[Finding]]
_JUDGES: dict[str, JudgeSource] = {}


def judge_source(seen: SourceFacts) -> list[Finding]:
    """Return the findings on a source, at least one."""
    return list(_JUDGES.get(seen.name.lower(), _unknown)(seen))


def declare(name: str, guarantee: str, why: str, cure: str = "") -> None:
    """Declare what your own source can guarantee, by its name in ``readStream.format(name)``.

    >>> declare("turnstile", "at-most-once", "a turnstile does not turn back")
    >>> judge_source(SourceFacts("turnstile"))[0].level
    <Guarantee.AT_MOST_ONCE: 0>
    """
    level = Guarantee.parse(guarantee)
    _judged(name)(lambda seen: iter([_found(seen, level, why, cure)]))


def _found(
    seen: SourceFacts, level: Guarantee, why: str, cure: str = "", *, warning: bool = False
) -> Finding:
    return Finding(FindingKind.SOURCE, seen.part, level, why, cure, warning)


def _judged(*names: str) -> Callable[[JudgeSource], JudgeSource]:
    def add(judge: JudgeSource) -> JudgeSource:
        _JUDGES.update(dict.fromkeys((name.lower() for name in names), judge))
        return judge

    return add


def _unknown(seen: SourceFacts) -> Iterator[Finding]:
    yield _found(
        seen,
        EXACTLY,
        "Beadline does not know this source. It is assumed to keep Spark's contract: that the rows "
        "between two offsets are the same whenever they are read, however long the query is down",
        "if it does not, declare it: beadline.guarantee.declare(name, level, why)",
        warning=True,
    )


@_judged("kafka")
def _kafka(seen: SourceFacts) -> Iterator[Finding]:
    level = EXACTLY
    if seen.option("failOnDataLoss", "true") == "false":
        level = AT_MOST
        yield _found(
            seen,
            AT_MOST,
            "failOnDataLoss is false: records that Kafka deleted before they were read are "
            "skipped silently",
            "leave failOnDataLoss at true, as sources.kafka does, and keep records for longer",
        )
    if seen.option("kafka.isolation.level", "read_uncommitted") != "read_committed":
        level = min(level, AT_LEAST)
        yield _found(
            seen,
            AT_LEAST,
            "it reads uncommitted: records of transactions that are aborted later are accepted, "
            "and an epoch that is redelivered may have different rows",
            'read with sources.kafka, or set kafka.isolation.level to "read_committed"',
        )
    if level is EXACTLY:
        yield _found(
            seen,
            EXACTLY,
            "positions are in the checkpoint, records are read again from there, and only "
            "committed ones; for as long as the topic keeps them",
        )


@_judged("parquet", "orc", "json", "csv", "text", "avro", "xml", "binaryfile")
def _files(seen: SourceFacts) -> Iterator[Finding]:
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        if seen.option(name, "false") == "true":
            yield _found(
                seen,
                AT_MOST,
                f"{name} is true: a file that is missing or broken when its epoch is read is "
                "skipped silently",
                f"leave {name} at false: the query then stops, and the file can be restored",
            )
            return
    yield _found(
        seen,
        EXACTLY,
        "the checkpoint names the files of each epoch; a file that is missing when its epoch is "
        "read or redelivered stops the query. A file that is changed in place after it was listed, "
        "or that arrives with an old modification time, is not noticed",
        "move complete files in by a rename, and leave them alone until their epoch is committed",
    )


@_judged("rate", "rate-micro-batch")
def _rate(seen: SourceFacts) -> Iterator[Finding]:
    yield _found(seen, EXACTLY, "a row is a function of its number; it can be computed again")


@_judged("delta")
def _delta(seen: SourceFacts) -> Iterator[Finding]:
    weaker = False
    for name, risky, level, why, cure in _DELTA:
        if seen.option(name, "") == risky:
            weaker = weaker or level is not EXACTLY
            warning = level is EXACTLY
            yield _found(seen, level, f"{name} is {risky}: {why}", cure, warning=warning)
    if not weaker:
        yield from _table(seen)


# Options of Delta's source: the value, the level that remains, why, and what helps.
_DELTA = (
    (
        "failOnDataLoss",
        "false",
        AT_MOST,
        "versions whose log or files are deleted before they were read are skipped silently",
        "leave failOnDataLoss at true, and keep the table's history for longer",
    ),
    (
        "ignoreChanges",
        "true",
        AT_LEAST,
        "when a file is rewritten (UPDATE, MERGE, DELETE), the rows in it that did not change are "
        "read a second time",
        "read the table's change data feed, or use skipChangeCommits",
    ),
    (
        "skipChangeCommits",
        "true",
        EXACTLY,
        "commits that change or delete rows are skipped as a whole, including new rows of a MERGE; "
        "appended rows are read once",
        "read the table's change data feed if changes matter",
    ),
    (
        "ignoreDeletes",
        "true",
        EXACTLY,
        "commits that only delete are skipped: rows that were read before stay in the sinks",
        "read the table's change data feed if deletes matter",
    ),
)


@_judged("iceberg", "hudi")
def _table(seen: SourceFacts) -> Iterator[Finding]:
    yield _found(
        seen,
        EXACTLY,
        "versions of the table are in the checkpoint, and are read again from there; for as long "
        "as its history is kept (VACUUM, expiry of snapshots)",
    )


@_judged("socket")
def _socket(seen: SourceFacts) -> Iterator[Finding]:
    yield _found(
        seen,
        AT_MOST,
        "a socket cannot be read again: what had arrived and was not committed when the query "
        "died is lost, and Spark does not continue from its checkpoint: each start is a new query, "
        "with a new checkpoint and another name; it reads nothing again, and rows that targets "
        "hold stay",
        "use sources.journaled(…) instead: it makes lines durable before Spark sees them",
    )


@_judged("memory")
def _memory(seen: SourceFacts) -> Iterator[Finding]:
    yield _found(seen, AT_MOST, "rows in memory die with the driver", "it is meant for tests")
