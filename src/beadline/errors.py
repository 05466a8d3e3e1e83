"""Every error Beadline raises, in one tree.

An error says what happened, to which query, epoch, sink or part, what it means for the
data, and what to do. ``exit_code`` is the exit code of the command line.

    BeadlineError                       1
    ├── UsageError                      2   the call cannot be right; nothing was written
    │   ├── BadQuery                        the stream, its names or its sinks
    │   │   └── StateChanged                its state does not match that of the checkpoint
    │   ├── BadSetting                      a Spark setting or an option that breaks a rule
    │   └── BadSink                         a sink that cannot take these rows
    ├── GuaranteeRefused                3   the query is weaker than the function's name
    ├── Fenced                          4   a newer start of this query has taken over
    ├── MissingExtra                    1   an optional dependency is not installed
    ├── JavaProblem                     1   no Java, or one that Spark cannot use
    ├── JarsUnavailable                 1   jars cannot be fetched, or the session lacks them
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
        ├── SourceGone                      the source no longer has the rows of a planned epoch
        ├── RowsRefused                     rows that the sink cannot take, and no dead_letter=
        ├── CommitFailed                    decided; finished by the next start
        │   ├── CommitBlocked               a password, permission or limit, not the epoch itself
        │   └── TargetRestored              the target lost epochs that it had acknowledged
        ├── PartLost                        decided, and proven absent from the outside system
        └── NotDeterministic                a replay gave other rows, or the same in other parts
"""

from __future__ import annotations

from typing import ClassVar

NOTHING_WRITTEN = "Nothing was written."  # the end of every error raised before any write
# What it means to start over: every error that gives such advice says this with it.
NEW_QUERY = (
    "Another name or checkpoint folder makes a new query: it reads the source again from where it "
    "is told to begin, and writes those rows a second time to targets that hold them. Use one only "
    "with targets that were emptied, or with source positions after the rows that they hold."
)


def without_meaning(text: str) -> str:
    """Return an error's text without "Nothing was written.", which is true only at a start.

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
    """The stream, its name or its set of sinks cannot be run."""


class StateChanged(BadQuery):
    """The query's state does not match its checkpoint: its code was changed."""


class BadSetting(UsageError):
    """A Spark setting or an option would break a rule of the protocol."""


class BadSink(UsageError):
    """A sink cannot take the rows of this query."""


class GuaranteeRefused(BeadlineError):
    """The query would be weaker than the function it was started with."""

    exit_code: ClassVar[int] = 3


class Fenced(BeadlineError):
    """A newer start of the same query has taken over; this one must not write anymore."""

    exit_code: ClassVar[int] = 4


class MissingExtra(BeadlineError):
    """An optional dependency is not installed; the message names the extra."""


class JavaProblem(BeadlineError):
    """There is no Java here, or one that Spark cannot use."""


class JarsUnavailable(BeadlineError):
    """Jars of a connector cannot be fetched, or a running Spark session lacks them."""


class SparkFailed(BeadlineError):
    """Spark ended the query, outside the processing of an epoch."""


class SparkGone(SparkFailed):
    """Spark was stopped while the query ran, or its JVM has ended: this process cannot continue."""


class CheckpointProblem(BeadlineError):
    """The checkpoint cannot be used as it is."""


class WrongCheckpoint(CheckpointProblem):
    """The checkpoint belongs to another query, or was copied, deleted or rewound."""


class PlannedByAnother(CheckpointProblem):
    """Another driver has replaced the source positions of an epoch; it is planned again."""


class LogProblem(BeadlineError):
    """The decision log cannot be read or written as it must be."""


class CorruptRecord(LogProblem):
    """A record of the log cannot be read. The error names it; its content is never guessed."""


class DecisionUnknown(LogProblem):
    """An append failed, and it is unknown whether it was written; the next start finds out."""


class EpochFailed(BeadlineError):
    """One epoch could not be completed."""


class PrepareFailed(EpochFailed):
    """Preparing failed. Nothing of the epoch was decided, and Spark redelivers it."""


class SourceGone(EpochFailed):
    """An epoch is redelivered, but the source no longer has all of its rows."""


class RowsRefused(EpochFailed):
    """A sink cannot take some rows, and the query has no dead-letter sink for them."""


class CommitFailed(EpochFailed):
    """The epoch is decided but not yet visible in every sink; the next start finishes it."""


class CommitBlocked(CommitFailed):
    """The commit is blocked by something other than the epoch: a password, a permission, a limit.

    Once a person corrects it no row is lost, so ``drop=["name"]`` does not give up rows for it.
    """


class TargetRestored(CommitFailed):
    """The target holds less than it has acknowledged: it was restored from an older backup."""

    # The newest epoch that it holds, -1 if none; None if only a part of this epoch is missing: then
    # the sink's own text names the way out (``way_out``), and the protocol adds no other.
    held: int | None = None


class PartLost(EpochFailed):
    """A decided part is proven absent from its outside system and could not be replayed."""


class NotDeterministic(EpochFailed):
    """A replay of a decided epoch gave different parts, so nothing was published.

    Either the rows differ, because the plan is non-deterministic; or Spark divided the same rows
    into other parts (another number of cores, other split sizes), which the message then names.
    """
