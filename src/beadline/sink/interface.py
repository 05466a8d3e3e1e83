"""The interface: what a sink must do so that each row shows in it once.

A sink author writes one class and proves it with the conformance suite
(``beadline.testing.suite``). Two shapes share everything but the first step: a ``Sink`` is
given Arrow batches on the executors, a ``FrameSink`` is given the epoch's DataFrame on the
driver and lets Spark's own writer run.

The order of calls for one epoch::

    check ─ once, before anything is written
    prepare ─ any number of attempts per part, in any process, possibly at the same time
    (decide ─ the coordinator's, not yours: one durable record of every committable)
    commit ─ any number of times, by any process, possibly an hour late
    abort ─ only for parts that no decision names, any number of times

The usual mistake is to make something visible in ``prepare``, or to trust that ``commit`` runs
only once. A commit that comes late, after newer epochs, must have no effect: check (incarnation,
epoch) in the same atomic act that writes.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args

from beadline.committable import Committable
from beadline.errors import RowsRefused
from beadline.ids import EpochId, PartId, QueryId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

C = TypeVar("C", bound=Committable)

# What a dead-letter sink is given of every refused row; a sink may ask for other columns.
DEAD_LETTER_COLUMNS = ("query", "sink", "epoch", "part", "reason", "row")


class Guarantee(enum.IntEnum):
    """How often a row may show; the guarantee of a query is its weakest part's."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2

    def __str__(self) -> str:
        """Return the form used everywhere: ``exactly-once``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, text: str) -> Guarantee:
        """Read ``"exactly-once"`` and its siblings."""
        return cls[text.upper().replace("-", "_")]


@dataclass(frozen=True)
class Capabilities:
    """What this sink, on this server as it is configured, can promise.

    The first three are for every sink. Each of the others says that the answer to its question is
    not the usual one.
    """

    # How often may a row show?
    guarantee: Guarantee
    # The same as a sentence for people, with what it depends on.
    sentence: str
    # Where do the rows go? In a form that stays the same as long as it is the same place (a cluster
    # id rather than a host name), and never with a secret in it.
    target: str

    # Does an epoch show as a whole or not at all, also while its commit is under way?
    atomic: bool = False
    # If the guarantee is below exactly-once: what would raise it?
    raised_by: str = ""
    # How does a person make the target forget the query, to begin anew?
    start_over: str = "empty the target"

    # Must driver and executors see the same disk?
    shared_disk: bool = False
    # Which columns does it take, if not all? Others are not sent to it.
    columns: tuple[str, ...] | None = None
    # Does it have ``publish``, for ``at_least_once``?
    publishes: bool = False

    # Is ``last_seen`` never older than the newest epoch with rows that was committed? Then a target
    # that says less was restored from an older copy.
    remembers: bool = False
    # What tells the thing at the target from one of the same name that replaces it (a Kafka topic's
    # id)? A start that finds another one is refused, and what was written to another one is not
    # decided.
    instance: str = ""

    # May the outside system throw a prepared part away (a transaction timeout)? Such parts carry a
    # content checksum, so that they can be replayed.
    expires: bool = False
    # How soon, if it is known, and which setting is to be raised?
    expires_after_s: float | None = None
    timeout_setting: str = "the outside system's transaction timeout"
    # Does a prepared part keep others waiting until it is ended, by locks, or readers behind an
    # open transaction?
    holds_up: bool = False


Refuse = Callable[["pa.RecordBatch", str], None]


class Reason(str):
    """Why rows are refused, in words that hold values of them: a server's, mostly.

    The text itself goes into the dead-letter record, which holds the whole row anyway. ``shown`` is
    the same without values, for an error: errors end up in logs.
    """

    shown: str

    def __new__(cls, text: str, shown: str) -> Reason:
        """Give both; any other ``str`` is a reason that may be shown as it is."""
        made = super().__new__(cls, text)
        made.shown = shown
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel whole."""
        return Reason, (str(self), self.shown)


def shown(reason: str) -> str:
    """Return what an error may say of a reason."""
    return reason.shown if isinstance(reason, Reason) else reason


def _no_dead_letter(id_: PartId, rows: pa.RecordBatch, reason: str) -> None:
    raise RowsRefused(
        f"{rows.num_rows} row(s) of part {id_.partition} cannot be taken: {shown(reason)}. "
        "Nothing of the epoch was written. Repair or filter them, or send them to another sink "
        "with .to(..., dead_letter=sink)"
    )


@dataclass(frozen=True)
class Part:
    """What one call of ``prepare`` is told: its id, its slot, and what was decided last.

    ``decided`` lists the parts of this sink in the newest two decisions, all finished, so that a
    long-lived writer knows what became of its transaction: what is not in it was not decided, or
    may not have been. ``slot`` is a small number that no other part alive in this epoch has, and
    that a worker process keeps from epoch to epoch where it can: a name for long-lived writers, of
    which there are only so many whatever the number of epochs and restarts. ``refuse(rows,
    reason)`` takes the rows that this sink cannot: to the dead-letter sink of the query, in the
    same epoch, or, where there is none, it raises and the epoch fails. A reason that holds values
    of rows is a ``Reason``.
    """

    id: PartId
    decided: tuple[PartId, ...] = ()
    slot: int = 0
    refuse: Refuse = None  # type: ignore[assignment]  # made from the id

    def __post_init__(self) -> None:
        """Without a dead-letter sink, a refused row is an error."""
        if self.refuse is None:
            object.__setattr__(self, "refuse", partial(_no_dead_letter, self.id))


@dataclass(frozen=True)
class Prepared(Generic[C]):
    """A part that is durable and invisible, with the record that can finish it from anywhere."""

    id: PartId
    rows: int
    committable: C
    checksum: int | None = None


class Outcome(enum.Enum):
    """What a commit can say of one part."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    LOST = "lost"  # proven absent; an error from the outside system is not a proof
    UNKNOWN = "unknown"  # asked again until it is known


@dataclass(frozen=True)
class CommitResult:
    """One outcome per part, and a sentence for people where there is something to say."""

    outcomes: Mapping[PartId, Outcome]
    detail: str = ""

    @classmethod
    def all(
        cls, parts: Sequence[Prepared[Any]], outcome: Outcome, detail: str = ""
    ) -> CommitResult:
        """The same outcome for every part: what a sink with atomic epochs answers."""
        return cls({part.id: outcome for part in parts}, detail)


@dataclass(frozen=True)
class Seen:
    """What a sink remembers of a query: the newest epoch that it holds.

    ``version_ms`` is that epoch's ``decided_at_ms``, from a sink that uses it as a version: no
    later epoch gets an earlier one, even if the clock was turned back in between.
    """

    incarnation: str
    epoch: int
    nonce: str = ""
    version_ms: int = field(default=0, compare=False)


@dataclass(frozen=True)
class _SinkBase(ABC, Generic[C]):
    """What both shapes share. Subclasses are frozen dataclasses of configuration."""

    # Taken from the class line, as in ``class OrdersSink(Sink[OrdersPart])``.
    committable: ClassVar[type[Committable]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take the committable from the class line, and ensure that no secret can be printed.

        The repr names the sink and shows none of its settings: a password may be among them, and a
        dataclass would print it; it leaves this one alone.
        """
        super().__init_subclass__(**arguments)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _safe_repr  # type: ignore[method-assign,assignment]
        found = _committable_of(cls)
        if found is not None:
            cls.committable = found
        elif not hasattr(cls, "committable") and not getattr(cls, "__parameters__", ()):
            raise TypeError(
                f"class {cls.__name__} does not say what its prepare returns. Write "
                f"class {cls.__name__}(Sink[YourPart]), where YourPart is a frozen dataclass "
                "derived from beadline.sink.Committable: it is stored in the decision log, and "
                "read back as that class"
            )

    # ---- required, in the order in which they are called ----

    @property
    @abstractmethod
    def default_name(self) -> str:
        """What a query calls the sink, unless its user says ``name=``: made from the target.

        ``name_from("shop", self.table)`` makes one. Never from the position among other sinks, as
        the name is in every part's id, and the next start must find it again.
        """

    @abstractmethod
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """On the driver, before anything is written: reachable? does the table fit the rows?

        Raise ``BadSink`` with what to do. Create nothing here that a refused start would leave
        behind.
        """

    @abstractmethod
    def commit(self, epoch: EpochId, parts: Sequence[Prepared[C]]) -> CommitResult:
        """Make the parts of a decided epoch visible. Repeating it, even late, changes nothing.

        Called in any process that holds the decision, any number of times, and possibly by two
        processes at once. Raise only when you cannot go on; answer ``UNKNOWN`` for a part whose
        outcome the outside system did not report, and you will be asked again. If one part of an
        atomic epoch is lost, none of it can be written: answer ``LOST`` for all, and keep the
        others.
        """

    @abstractmethod
    def abort(self, parts: Sequence[Prepared[C]]) -> None:
        """Throw undecided parts away. Idempotent; never called for a part that was decided."""

    @abstractmethod
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[C]]:
        """Every part of this query and incarnation that is prepared and not visible.

        ``name`` is what the query calls the sink now; return the parts of other names too: those
        that are gone from the query still have orphans, and the coordinator sorts out whose they
        are. A part that a crash left half-written is one of them. Skip ids that are not Beadline's.
        """

    @abstractmethod
    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """What the outside system itself remembers of ``query.name``, whatever incarnation.

        Of the sink of that ``name``, where it tells them apart: a query may have two here. Another
        incarnation comes first: it is what must be noticed.
        """

    # ---- optional ----

    def open(self, query: QueryId, name: str) -> None:
        """On the driver, after the claim: create what is kept beside the target; idempotent.

        ``name`` is what this query calls the sink, as in ``PartId.sink``.
        """

    def close(self, query: QueryId, name: str) -> Callable[[], None] | None:
        """On the driver, after a clean stop: let no writer of this query begin anything more.

        Look which writers there are, and return what ends them: it is called unless a newer start
        has taken over meanwhile, and must not touch writers that came later.
        """
        return None

    def instance_now(self) -> str:
        """On the driver, before each decision: what ``Capabilities.instance`` would be now.

        Empty where it cannot be told at the moment; asked only of a sink that has told it at the
        start.
        """
        return ""

    # In which columns it takes the rows that another sink refused: any of ``DEAD_LETTER_COLUMNS``,
    # and ``value``, which is all of them as one JSON object.
    dead_letter_columns: ClassVar[tuple[str, ...]] = DEAD_LETTER_COLUMNS


def _committable_of(cls: type) -> type[Committable] | None:
    """Return what a class line says in brackets; None if it says nothing, or the class itself."""
    if "committable" in cls.__dict__:
        return None
    bases = cls.__dict__.get("__orig_bases__", ())
    named = (argument for base in bases for argument in get_args(base))
    return next((one for one in named if _is_committable(one)), None)


def _is_committable(argument: Any) -> bool:
    return isinstance(argument, type) and issubclass(argument, Committable)


def _safe_repr(sink: _SinkBase[Any]) -> str:
    return f"{type(sink).__name__}({sink.default_name})"


@dataclass(frozen=True)
class Sink(_SinkBase[C]):
    """A sink that takes Arrow batches on the executors. It holds configuration only."""

    @abstractmethod
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> C | None:
        """Make the part durable and invisible; answer with what finishes it from any process.

        Runs on an executor. ``None`` says that there was nothing to write. When this returns, a
        power cut must not lose the rows. Rows that can never be taken go to ``part.refuse``, and
        are then no longer yours.
        """

    def publish(self, rows: Iterator[pa.RecordBatch], part: Part) -> None:
        """Make the rows visible at once, for ``at_least_once``; only with ``publishes``."""
        raise NotImplementedError(f"{type(self).__name__} does not publish")


@dataclass(frozen=True)
class FrameSink(_SinkBase[C]):
    """A sink that lets Spark's own writer run on the epoch's frame."""

    @abstractmethod
    def prepare(self, frame: DataFrame, part: Part) -> C | None:
        """Write the frame durably and invisibly; runs on the driver, one call per epoch.

        Run the frame, whole and once, also where it may be empty: its rows are counted as they
        pass, and a stateful plan moves on only if it runs.
        """


AnySink = Sink[Any] | FrameSink[Any]


@dataclass(frozen=True)
class BoundSink:
    """A sink in its place in one query: named, checked, and with what it was found to promise.

    ``dead_letter`` names the sink, another one of the query, that takes the rows refused by it.
    """

    name: str
    sink: AnySink
    capabilities: Capabilities
    dead_letter: str = ""

    @property
    def kind(self) -> str:
        """The class of its committables, as the log names it."""
        return self.sink.committable.__name__

    def __repr__(self) -> str:
        """Name and target only: a sink's settings may hold a secret."""
        return f"BoundSink({self.name} → {self.capabilities.target})"
