"""``exactly_once(frame, name).to(sink).start(checkpoint)``: the API that users call.

A ``Stream`` is a description that can be passed around, analyzed and tested; nothing is read or
written before ``start``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from beadline.decisions import KEEP_DEFAULT
from beadline.errors import BadQuery, BadSetting
from beadline.ids import check_name
from beadline.names import name_from
from beadline.outputs import MAIN, Outputs
from beadline.sink import AnySink, FrameSink, Guarantee, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from beadline.guarantee import Report
    from beadline.observe import Listener
    from beadline.spark.engine import RowsFunction
    from beadline.spark.query import Query


@dataclass(frozen=True)
class StartSettings:
    """The arguments of ``start``."""

    checkpoint: str
    every: str | None
    available_now: bool
    output_mode: str
    drop: tuple[str, ...]
    keep: int
    options: dict[str, str] = field(repr=False)  # may hold a secret


@dataclass(frozen=True)
class Output:
    """One sink of a stream: its name, its share of the rows, and the guarantee allowed for it."""

    name: str
    sink: AnySink
    rows: RowsFunction | None = None
    allow: Guarantee | None = None
    shared_disk: bool = False
    refused_by: str = ""  # for a dead-letter sink: the sink whose refused rows it takes


@dataclass(frozen=True)
class Stream:
    """A streaming DataFrame and the sinks it is written to; made by ``exactly_once``."""

    frame: DataFrame
    name: str
    mode: Guarantee
    outputs: tuple[Output, ...] = field(default=())
    allow: Guarantee | None = None  # the weakest guarantee that its sources may have
    tagged: Outputs | None = None  # set if the frame's rows belong to several outputs

    def to(
        self,
        sink: AnySink,
        *,
        rows: RowsFunction | None = None,
        output: str = MAIN,
        name: str | None = None,
        allow: str | None = None,
        shared_disk: bool = False,
        dead_letter: AnySink | None = None,
    ) -> Stream:
        """Add a sink; all sinks of a stream are decided together, epoch by epoch.

        ``rows`` is a function that transforms the rows of an epoch, as a batch DataFrame, for this
        sink only. ``output`` selects one of several outputs, such as ``"late"`` of windows.
        ``name`` is the sink's name in the decision log, derived from its target unless given; it
        must stay the same across restarts.
        ``allow="at-least-once"`` allows a sink with a weaker guarantee than the query's.
        ``shared_disk=True`` declares that a local path of the sink is the same disk (a network
        mount) for driver and executors; without it such a sink is refused on a cluster.
        ``dead_letter`` is a sink for the rows that this one refuses, each with the reason, in the
        same epoch; without it a refused row stops the query. ``allow`` and ``shared_disk`` apply to
        both sinks.
        """
        if not isinstance(sink, (Sink, FrameSink)):
            raise BadQuery(f"to() takes a beadline.sink.Sink, not {type(sink).__name__}")
        name = check_name("sink", name if name is not None else sink.default_name)
        weaker = _allowed(allow)
        stream = self._with(Output(name, sink, self._rows_of(output, rows), weaker, shared_disk))
        if dead_letter is None:
            return stream
        if not isinstance(dead_letter, (Sink, FrameSink)) or dead_letter == sink:
            what = "the same sink" if dead_letter == sink else type(dead_letter).__name__
            raise BadQuery(f"dead_letter= takes another beadline.sink.Sink, not {what}")
        # Named after the sink that it serves, so that two may share one target in any order.
        dead_letter_name = name_from(name, "dead-letter")
        return stream._with(Output(dead_letter_name, dead_letter, None, weaker, shared_disk, name))

    def _rows_of(self, output: str, rows: RowsFunction | None) -> RowsFunction | None:
        """Return the function that makes a sink's rows from an epoch's; None for all rows."""
        picked = (self.tagged or Outputs.of(self.frame)).rows(output)
        if picked is None or rows is None:
            return picked or rows
        return lambda frame: rows(picked(frame))

    def _with(self, output: Output) -> Stream:
        if any(other.name == output.name for other in self.outputs):
            raise BadQuery(
                f"query {self.name!r} has two sinks named {output.name!r}: the log could not tell "
                'their parts apart. Give one of them another name: .to(sink, name="..."). Nothing '
                "was written."
            )
        return replace(self, outputs=(*self.outputs, output))

    def guarantee(self, *, restart_s: float | None = None) -> Report:
        """Report the query's guarantee, which part limits it, why, and what would raise it.

        This connects to the server of every sink, and writes nothing. ``restart_s`` is the longest
        restart to plan for (600 seconds unless given). ``print(stream.guarantee())`` prints the
        report for people.
        """
        from beadline.spark.analyze import analyze

        return analyze(self, restart_s)

    def start(
        self,
        checkpoint: str,
        *,
        every: str | None = None,
        available_now: bool = False,
        output_mode: str = "append",
        drop: Collection[str] = (),
        keep: int = KEEP_DEFAULT,
        options: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Query:
        """Check everything, claim the log, finish the epoch that was decided, then start Spark.

        ``every`` is a trigger interval such as ``"1 second"``; ``available_now`` processes all
        available data and ends; without either, epochs follow one another without a pause. ``drop``
        gives up rows of the sinks that it names: those that a decided epoch holds for a sink that
        was removed, or that a sink has lost since. ``keep`` is how many records of the log are
        retained. ``listener`` is called with an event for every step of every epoch.
        """
        from beadline.spark.query import start

        drop = (drop,) if isinstance(drop, str) else drop
        if every is not None and available_now:
            raise BadSetting("start() takes every= or available_now=True, not both")
        settings = StartSettings(
            checkpoint, every, available_now, output_mode, tuple(drop), keep, dict(options or {})
        )
        return start(self, settings, listener)


def exactly_once(frame: DataFrame | Outputs, name: str, *, allow: str | None = None) -> Stream:
    """Write each row of the source to each sink exactly once, whatever process dies.

    A source that cannot be read again is refused, unless ``allow="at-most-once"`` accepts that rows
    it had delivered but that were not committed may be lost.
    """
    return _stream(frame, name, Guarantee.EXACTLY_ONCE, allow)


def at_least_once(frame: DataFrame | Outputs, name: str, *, allow: str | None = None) -> Stream:
    """Write each row at least once; rows may be duplicated after a crash.

    It uses no transactions, so latency is lower. ``allow`` as with ``exactly_once``.
    """
    return _stream(frame, name, Guarantee.AT_LEAST_ONCE, allow)


def _stream(given: DataFrame | Outputs, name: str, mode: Guarantee, allow: str | None) -> Stream:
    tagged = given if isinstance(given, Outputs) else None
    frame = given.frame if isinstance(given, Outputs) else given
    return Stream(frame, check_name("query", name), mode, allow=_allowed(allow), tagged=tagged)


def _allowed(text: str | None) -> Guarantee | None:
    if text is None:
        return None
    try:
        return Guarantee.parse(text)
    except KeyError:
        known = ", ".join(repr(str(level)) for level in Guarantee)
        raise BadQuery(f"allow= takes one of {known}, not {text!r}") from None
