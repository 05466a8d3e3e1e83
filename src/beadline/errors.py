"""Every error Beadline raises, in one tree.

An error says what happened, to which query, epoch, sink or part, what it means for the
data, and what to do. ``exit_code`` is what the command line answers with.

    BeadlineError                       1
    ├── UsageError                      2   the call cannot be right; nothing was written
    │   ├── BadQuery                        the stream, its names or its sinks
    │   │   └── StateChanged                its state is not what the checkpoint holds
    │   ├── BadSetting                      a Spark setting or an option that breaks a rule
    │   └── BadSink                         a sink that cannot take these rows
    ├── GuaranteeRefused                3   the query is weaker than the function's name
    ├── Fenced                          4   a newer start of this query has taken over
    ├── MissingExtra                    1   an optional dependency is not installed
    ├── JavaProblem                     1   no Java, or one that Spark cannot use
    ├── JarsUnavailable                 1   jars are not here and cannot be fetched, or not in Spark
    ├── SparkFailed                     1   Spark ended the query outside of an epoch
    │   └── SparkGone                       Spark was stopped, or its JVM has ended
    ├── CheckpointProblem               1   the checkpoint, the log and the sinks disagree
    │   ├── WrongCheckpoint                 made by another query, copied, deleted or rewound
    │   └── PlannedByAnother                another driver replaced the positions of an epoch
    ├── LogProblem                      1
    │   ├── CorruptRecord                   a record of the decision log cannot be read
    │   └── DecisionUnknown                 an append failed and it is not known whether it landed
    └── EpochFailed                     1
        ├── PrepareFailed                   nothing of the epoch was decided; it is redelivered
        ├── SourceGone                      what an epoch was planned with cannot be read again
        ├── RowsRefused                     rows that the sink cannot take, and no dead_letter=
        ├── CommitFailed                    decided; finished by the next start
        │   ├── CommitBlocked               a password, a right, a limit: nothing about the epoch
        │   └── TargetRestored              the target lost epochs that it had acknowledged
        ├── PartLost                        decided, and proven absent from the outside system
        └── NotDeterministic                a replay gave other parts: other rows, or cut otherwise
"""

from __future__ import annotations

from typing import ClassVar

NOTHING_WRITTEN = "Nothing was written."  # how an error ends that is raised before anything is
# What it means to start over: every error that comes near such advice says this with it.
NEW_QUERY = (
    "Another name or checkpoint folder makes a new query: it reads the source again from where it "
    "is told to begin, and writes those rows a second time to targets that hold them. Use one only "
    "with targets that were emptied, or with source positions behind the rows that they hold."
)


def without_meaning(text: str) -> str:
    """Return what an error says, but for what it means where it is raised at a start.

    A sink may raise the same error during a run: then the protocol says what it means.
    """
    return text.replace(NOTHING_WRITTEN, "").strip().removesuffix(".")


class BeadlineError(Exception):
    """The root of every error that Beadline raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(BeadlineError):
    """The call cannot be right. Nothing was written."""

    exit_code: ClassVar[int] = 2


class BadQuery(UsageError):
    """The stream, its name, or its set of sinks is not one that can be run."""


class StateChanged(BadQuery):
    """The query would keep other state than its checkpoint holds: its code was changed."""


class BadSetting(UsageError):
    """A Spark setting or an option would break a rule of the protocol."""


class BadSink(UsageError):
    """A sink cannot take the rows that this query would give it."""


class GuaranteeRefused(BeadlineError):
    """The query would be weaker than the function it was started with."""

    exit_code: ClassVar[int] = 3


class Fenced(BeadlineError):
    """A newer start of the same query has taken over; this one must not write any more."""

    exit_code: ClassVar[int] = 4


class MissingExtra(BeadlineError):
    """An optional dependency is not installed; the message names the extra."""


class JavaProblem(BeadlineError):
    """There is no Java here, or one that Spark cannot use."""


class JarsUnavailable(BeadlineError):
    """Jars of a connector cannot be fetched, or a running Spark session lacks them."""


class SparkFailed(BeadlineError):
    """Spark ended the query, outside of what is done for an epoch."""


class SparkGone(SparkFailed):
    """Spark was stopped under the query, or its JVM has ended: this process cannot continue."""


class CheckpointProblem(BeadlineError):
    """The checkpoint cannot be used as it is."""


class WrongCheckpoint(CheckpointProblem):
    """The checkpoint belongs to another query, or was copied, deleted or rewound."""


class PlannedByAnother(CheckpointProblem):
    """Another driver has replaced the source positions of an epoch; it is planned again."""


class LogProblem(BeadlineError):
    """The decision log cannot be read or written as it must be."""


class CorruptRecord(LogProblem):
    """A record of the log cannot be read. It is named, never guessed at."""


class DecisionUnknown(LogProblem):
    """An append failed in a way that leaves open whether it landed; the next start finds out."""


class EpochFailed(BeadlineError):
    """One epoch could not be completed."""


class PrepareFailed(EpochFailed):
    """Preparing failed. Nothing of the epoch was decided, and Spark redelivers it."""


class SourceGone(EpochFailed):
    """An epoch is redelivered, and the source no longer has all of its rows."""


class RowsRefused(EpochFailed):
    """A sink cannot take some rows, and the query has no dead-letter sink for them."""


class CommitFailed(EpochFailed):
    """The epoch is decided but not every sink shows it yet; the next start finishes it."""


class CommitBlocked(CommitFailed):
    """Something other than the epoch is in the way: a password, a right, a limit of the server.

    A person corrects it and no row is lost, so ``drop=["name"]`` gives nothing up over it.
    """


class TargetRestored(CommitFailed):
    """The target holds less than it has acknowledged: it was restored from an older copy."""

    # The newest epoch that it holds, -1 if none; None where only this epoch went, in part.
    held: int | None = None


class PartLost(EpochFailed):
    """A decided part is proven absent from its outside system and could not be replayed."""


class NotDeterministic(EpochFailed):
    """A replay of a decided epoch gave other parts than were decided, so nothing was published.

    Other rows, by a plan that is not deterministic; or rows that Spark has cut into parts otherwise
    (another number of cores, other split sizes), which the message then names.
    """
