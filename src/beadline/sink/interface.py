"""The interface: what a sink must do so that each row appears in it exactly once.

A sink author writes one class and tests it with the conformance suite
(``beadline.testing.suite``). There are two kinds, which differ only in the first step: a ``Sink``
receives Arrow batches on the executors; a ``FrameSink`` receives the epoch's DataFrame on the
driver and lets Spark's own writer run.

The order of calls for one epoch::

    check ─ once, before anything is written
    prepare ─ any number of attempts per part, in any process, possibly at the same time
    (decide ─ done by the coordinator: one durable record of every committable)
    commit ─ any number of times, by any process, possibly an hour late
    abort ─ only for parts that no decision names, any number of times

The usual mistakes are to make something visible in ``prepare``, and to rely on ``commit`` running
only once. A commit that comes late, after newer epochs, must have no effect: check (incarnation,
epoch) in the same atomic operation that writes.
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

# The columns that a dead-letter sink receives for each refused row; a sink may choose others.
DEAD_LETTER_COLUMNS = ("query", "sink", "epoch", "part", "reason", "row")


class Guarantee(enum.IntEnum):
    """How often a row may appear in a sink; a query's guarantee is that of its weakest part."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2

    def __str__(self) -> str:
        """Return the form used everywhere: ``exactly-once``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, text: str) -> Guarantee:
        """Parse ``"exactly-once"``, ``"at-least-once"`` or ``"at-most-once"``."""
        return cls[text.upper().replace("-", "_")]


@dataclass(frozen=True)
class Capabilities:
    """What this sink can guarantee, on this server with its configuration.

    The first three fields are required. Set each of the others only where the sink differs from
    the default.
    """

    # How often may a row appear?
    guarantee: Guarantee
    # The same as a sentence for people, with what it depends on.
    sentence: str
    # Where do the rows go? It must stay the same as long as the place is the same (a cluster id
    # rather than a host name), and must never contain a secret.
    target: str

    # Does an epoch become visible as a whole or not at all, even while it is being committed?
    atomic: bool = False
    # If the guarantee is below exactly-once: what would raise it?
    raised_by: str = ""
    # How does a person make the target forget the query, to start over?
    start_over: str = "empty the target"

    # Must driver and executors see the same disk?
    shared_disk: bool = False
    # Which columns does it take, if not all? Others are not sent to it.
    columns: tuple[str, ...] | None = None
    # Does it implement ``publish``, for ``at_least_once``?
    publishes: bool = False
    # Can it hand single rows over to ``part.refuse``? If not, ``dead_letter=`` is refused.
    refuses_rows: bool = True

    # Does ``last_seen`` always return the newest committed epoch that has rows, or a later one? If
    # so, a target that returns an older one was restored from an older backup.
    remembers: bool = False
    # What distinguishes the target from a replacement of the same name (a Kafka topic's id)? A
    # start that finds another instance is refused, and parts written to another instance are not
    # decided.
    instance: str = ""

    # May the outside system discard a prepared part (a transaction timeout)? Such parts carry a
    # content checksum, so that they can be replayed.
    expires: bool = False
    # After how long, if that is known, and which setting raises it?
    expires_after_s: float | None = None
    timeout_setting: str = "the outside system's transaction timeout"
    # Does a prepared part block others until it is ended: writers by its locks, or readers behind
    # an open transaction?
    holds_up: bool = False


Refuse = Callable[["pa.RecordBatch", str], None]


class Reason(str):
    """Why rows are refused, in a text that contains values of the rows, such as a server's message.

    The text itself goes into the dead-letter record, which holds the whole row anyway. ``shown`` is
    the same without values, for error messages, which end up in logs.
    """

    shown: str

    def __new__(cls, text: str, shown: str) -> Reason:
        """Take both texts; a reason that is a plain ``str`` may be shown as it is."""
        made = super().__new__(cls, text)
        made.shown = shown
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both texts."""
        return Reason, (str(self), self.shown)


def shown(reason: str) -> str:
    """Return the text of a reason that an error message may contain."""
    return reason.shown if isinstance(reason, Reason) else reason


def _no_dead_letter(id_: PartId, rows: pa.RecordBatch, reason: str) -> None:
    raise RowsRefused(
        f"{rows.num_rows} row(s) of part {id_.partition} cannot be taken: {shown(reason)}. "
        "Nothing of the epoch was written. Repair or filter them, or send them to another sink "
        "with .to(..., dead_letter=sink)"
    )


@dataclass(frozen=True)
class Part:
    """The context of one call of ``prepare``: the part's id, its slot, and the last decisions.

    ``decided`` lists the parts of this sink in the newest two decisions, both finished, so that a
    long-lived writer can learn what became of its transaction: one that is not listed was not
    decided, or may not have been. ``slot`` is a small number that is unique among the parts that
    are alive in this epoch, and that a worker process keeps from epoch to epoch where it can: use
    it to name long-lived writers, whose number then does not grow with epochs and restarts.
    ``refuse(rows, reason)`` hands over rows that this sink cannot take: they go to the dead-letter
    sink of the query, in the same epoch; if there is none, it raises and the epoch fails. A reason
    that contains values of rows must be a ``Reason``.
    """

    id: PartId
    decided: tuple[PartId, ...] = ()
    slot: int = 0
    refuse: Refuse = None  # type: ignore[assignment]  # made from the id

    def __post_init__(self) -> None:
        """Set the default of ``refuse``: without a dead-letter sink, it raises."""
        if self.refuse is None:
            object.__setattr__(self, "refuse", partial(_no_dead_letter, self.id))


@dataclass(frozen=True)
class Prepared(Generic[C]):
    """A durable, invisible part, with the record with which any process can finish it."""

    id: PartId
    rows: int
    committable: C
    checksum: int | None = None


class Outcome(enum.Enum):
    """The outcome of a commit for one part."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    LOST = "lost"  # proven absent; an error from the outside system is not a proof
    UNKNOWN = "unknown"  # the commit is repeated until the outcome is known


@dataclass(frozen=True)
class CommitResult:
    """One outcome per part, and optionally an explanation for people."""

    outcomes: Mapping[PartId, Outcome]
    detail: str = ""

    @classmethod
    def all(
        cls, parts: Sequence[Prepared[Any]], outcome: Outcome, detail: str = ""
    ) -> CommitResult:
        """Return the same outcome for every part, as a sink with atomic epochs does."""
        return cls({part.id: outcome for part in parts}, detail)


@dataclass(frozen=True)
class Seen:
    """What a sink remembers of a query: the newest epoch that it holds.

    ``version_ms`` is that epoch's ``decided_at_ms``, from a sink that uses it as a version: later
    epochs get later times, even if the clock was set back in between.
    """

    incarnation: str
    epoch: int
    nonce: str = ""
    version_ms: int = field(default=0, compare=False)


@dataclass(frozen=True)
class _SinkBase(ABC, Generic[C]):
    """What both kinds of sinks share. Subclasses are frozen dataclasses of configuration."""

    # Taken from the class line, as in ``class OrdersSink(Sink[OrdersPart])``.
    committable: ClassVar[type[Committable]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take the committable from the class line, and ensure that no secret can be printed.

        The repr names the sink and shows none of its settings, since a password may be among them.
        A dataclass would print it, but keeps a ``__repr__`` that the class has.
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
        """The sink's name in a query, unless the user gives ``name=``: derived from the target.

        ``name_from("shop", self.table)`` makes one. Never derive it from the position among other
        sinks: the name is in every part's id, and the next start must find it again.
        """

    @abstractmethod
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Check on the driver, before anything is written, that this sink can take these rows.

        Is the server reachable, and does the table fit the rows? If not, raise ``BadSink`` and say
        what to do. Create nothing here that a refused start would leave behind.
        """

    @abstractmethod
    def commit(self, epoch: EpochId, parts: Sequence[Prepared[C]]) -> CommitResult:
        """Make the parts of a decided epoch visible. Repeating it, even late, changes nothing.

        It is called in any process that has read the decision, any number of times, and possibly in
        two processes at once. Raise only if you cannot continue; return ``UNKNOWN`` for a part
        whose outcome the outside system did not report, and you will be called again. If one part
        of an atomic epoch is lost, none of the epoch can be written: return ``LOST`` for all parts,
        and keep those that are not lost.
        """

    @abstractmethod
    def abort(self, parts: Sequence[Prepared[C]]) -> None:
        """Discard undecided parts. Idempotent; never called for a part that was decided."""

    @abstractmethod
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[C]]:
        """Return every part of this query and incarnation that is prepared and not visible.

        ``name`` is the sink's present name in the query; return the parts of other names too: sinks
        that were removed from the query may have left orphans, and the coordinator sorts out whose
        they are. Include parts that a crash left half-written. Skip ids that are not Beadline's.
        """

    @abstractmethod
    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the outside system itself remembers of ``query.name``, in any incarnation.

        If it distinguishes sinks (a query may have two here), return what it remembers of the sink
        of this ``name``. If it remembers another incarnation, return that one: it must be noticed.
        """

    # ---- optional ----

    def open(self, query: QueryId, name: str) -> None:
        """Create, on the driver and after the claim, what is kept beside the target; idempotent.

        ``name`` is the sink's name in this query, as in ``PartId.sink``.
        """

    def close(self, query: QueryId, name: str) -> Callable[[], None] | None:
        """Keep, on the driver and after a clean stop, this query's writers from starting anything.

        Find the present writers, and return a function that ends them: it is called unless a newer
        start has taken over meanwhile, and must not touch writers that were created later.
        """
        return None

    def instance_now(self) -> str:
        """Return what ``Capabilities.instance`` would be now; called before each decision.

        Return an empty text if that cannot be found out at the moment. It is called, on the driver,
        only if ``check`` returned an instance.
        """
        return ""

    # The columns in which it takes rows that another sink refused: any of ``DEAD_LETTER_COLUMNS``,
    # and ``value``, which is all of them as one JSON object.
    dead_letter_columns: ClassVar[tuple[str, ...]] = DEAD_LETTER_COLUMNS


def _committable_of(cls: type) -> type[Committable] | None:
    """Return the committable in a class line's brackets; None if the class sets it, or neither."""
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
    """A sink that receives Arrow batches on the executors. It holds configuration only."""

    @abstractmethod
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> C | None:
        """Make the part durable and invisible; return the record with which it can be finished.

        Runs on an executor. Return ``None`` if there was nothing to write. When this returns, a
        power cut must not lose the rows. Pass rows that can never be taken to ``part.refuse``, and
        leave them out.
        """

    def publish(self, rows: Iterator[pa.RecordBatch], part: Part) -> None:
        """Make the rows visible at once, for ``at_least_once``; called only with ``publishes``."""
        raise NotImplementedError(f"{type(self).__name__} does not publish")


@dataclass(frozen=True)
class FrameSink(_SinkBase[C]):
    """A sink that lets Spark's own writer write the epoch's DataFrame."""

    @abstractmethod
    def prepare(self, frame: DataFrame, part: Part) -> C | None:
        """Write the frame durably and invisibly; runs on the driver, one call per epoch.

        Evaluate the whole frame exactly once, even if it may be empty: its rows are counted as they
        pass, and a stateful plan advances only if it runs.
        """


AnySink = Sink[Any] | FrameSink[Any]


@dataclass(frozen=True)
class BoundSink:
    """A sink in a query, with its name and the capabilities that its check returned.

    ``dead_letter`` names the other sink of the query that takes the rows refused by this one.
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
