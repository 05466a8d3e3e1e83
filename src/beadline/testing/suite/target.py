"""One target, and the calls that the protocol would make on its sink."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked
from beadline.shared.retry import polls
from beadline.sink import FrameSink, Guarantee, Outcome, Part, Prepared
from beadline.testing.suite.harness import Row, SinkHarness

QUERY = QueryId("suite", "a" * 32, "file:/suite/checkpoint")
SAME_NAME = QueryId("suite", "b" * 32, "file:/suite/elsewhere")
OTHER_QUERY = QueryId("other", "c" * 32, "file:/other/checkpoint")
SINK_NAME = "under-test"
UNKNOWN_WAIT_S = 60.0
POINTS_MAX = 50
BATCH_ROWS = 2  # small, so that every part has several batches

Case = Callable[[SinkHarness], None]
PreparedParts = list[Prepared[Any]]


class SimulatedCrash(BaseException):
    """The end of a process, as far as one process can play it: no handler of errors sees it."""


class Target:
    """A fresh target, its sink, and what was found out about it."""

    def __init__(self, harness: SinkHarness, schema: pa.Schema | None = None) -> None:
        """Make the target and let the sink check it, as a start does."""
        self.harness = harness
        self.schema = harness.schema if schema is None else schema
        self.sink = harness.fresh(self.schema)
        self.capabilities = self.sink.check(self.schema, QUERY)
        self.sink.open(QUERY, SINK_NAME)

    def copy(self) -> Target:
        """The same target elsewhere: the sink as an executor or the next process gets it."""
        other = object.__new__(Target)
        other.__dict__.update(self.__dict__)
        other.sink = pickle.loads(pickled(self.sink))  # noqa: S301 (made in this line)
        return other

    def rows(self, *numbers: int, version: int = 0) -> list[Row]:
        """Rows of these numbers."""
        return [self.harness.row(number, version) for number in numbers]

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        """The rows as Arrow batches; without rows, one empty batch."""
        table = pa.Table.from_pylist(list(rows), schema=self.schema)
        found: list[Any] = table.to_batches(max_chunksize=BATCH_ROWS)
        return found or [pa.RecordBatch.from_pylist([], schema=self.schema)]

    def ack(self, rows: Sequence[Row], id_: PartId, around: Around | None = None) -> Any:
        """Call ``prepare``; ``around`` may disturb the batches on their way."""
        return self.ack_batches(self.batches(rows), Part(id_, slot=next(_slots)), around)

    def ack_batches(self, batches: list[Any], part: Part, around: Around | None = None) -> Any:
        """The same with batches as they come, whatever is in them."""
        if isinstance(self.sink, FrameSink):
            spark = self.harness.spark
            assert spark is not None, "the harness of a FrameSink needs a spark"
            return self.sink.prepare(spark.createDataFrame(pa.Table.from_batches(batches)), part)
        coming = iter(batches)
        return self.sink.prepare(coming if around is None else around(coming), part)

    def prepare(self, rows: Sequence[Row], id_: PartId) -> Prepared[Any]:
        """Prepare a part that has rows, and keep it as the log would: as JSON."""
        committable = self.ack(rows, id_)
        assert committable is not None, "prepare answered None for a part that has rows"
        assert type(committable) is self.sink.committable, "committable is not of the declared type"
        return through_json(self, Prepared(id_, len(rows), committable))

    def prepare_epoch(self, epoch: int, *shares: list[Row], generation: int = 1) -> PreparedParts:
        """Prepare an epoch in several parts; a FrameSink is given one frame per epoch."""
        if isinstance(self.sink, FrameSink):
            shares = ([row for share in shares for row in share],)
        ids = [part_id(epoch, partition, generation=generation) for partition in range(len(shares))]
        return [self.prepare(share, id_) for share, id_ in zip(shares, ids, strict=True)]

    def commit(
        self, number: int, parts: PreparedParts, query: QueryId = QUERY, previous: int = -1
    ) -> set[Outcome]:
        """Commit until every outcome is known, as the coordinator does."""
        epoch = epoch_id(number, query, previous)
        again = polls(UNKNOWN_WAIT_S, 0.01)
        while True:
            outcomes = self.sink.commit(epoch, parts).outcomes
            assert set(outcomes) == {part.id for part in parts}, "an outcome for every part"
            if Outcome.UNKNOWN not in outcomes.values():
                return set(outcomes.values())
            assert again(), f"unknown for {UNKNOWN_WAIT_S} s: {outcomes}"

    def doubts(self, query: QueryId = QUERY) -> set[PartId]:
        """The ids in doubt."""
        return {part.id for part in self.sink.in_doubt(query, SINK_NAME)}

    def sweep(self, query: QueryId = QUERY) -> None:
        """Abort all that is in doubt, as recovery does when nothing is decided."""
        self.sink.abort(list(self.sink.in_doubt(query, SINK_NAME)))

    def assert_shows(self, *rows: Row) -> None:
        """Exactly what these rows leave behind is visible: nothing lost, nothing twice."""
        seen, wanted = bag(self.harness.visible(self.sink)), bag(self.harness.expected(list(rows)))
        assert seen == wanted, f"lost: {list(wanted - seen)}, too many: {list(seen - wanted)}"

    def assert_clean(self) -> None:
        """Nothing is left over outside, and nothing is in doubt."""
        assert list(self.harness.leftovers(self.sink)) == []
        assert self.doubts() == set()

    @property
    def leaves_something(self) -> bool:
        """Whether a prepared part takes up anything outside its committable."""
        return bool(self.harness.leftovers(self.sink))


# No two parts of a case may take each other's place, as in a running query.
_slots = itertools.count()
Around = Callable[[Iterator[Any]], Iterator[Any]]


def pickled(value: object) -> bytes:
    """Pickle as Spark does, so that classes of test files and notebooks travel too."""
    from pyspark import cloudpickle

    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def through_json(target: Target, part: Prepared[Any]) -> Prepared[Any]:
    """Return the part as the decision log gives it back."""
    stored = json.loads(json.dumps(part.committable.to_json()))
    read = target.sink.committable.from_json(stored)
    assert read == part.committable, "the committable does not survive JSON"
    return Prepared(part.id, part.rows, read, part.checksum)


def part_id(
    epoch: int,
    partition: int = 0,
    attempt: int = 0,
    generation: int = 1,
    query: QueryId = QUERY,
    sink: str = SINK_NAME,
) -> PartId:
    """The id of a part, of the sink under test unless another is named."""
    numbers = (generation, epoch, partition, attempt)
    return PartId(query.name, query.incarnation, sink, *numbers)


def epoch_id(number: int, query: QueryId = QUERY, previous: int = -1) -> EpochId:
    """The identity of a decided epoch."""
    return EpochId(query, number, f"{number:032x}", 1_700_000_000_000 + number, previous)


def bag(rows: Iterable[Row]) -> Counter[str]:
    """Rows as a multiset, whatever the order of rows and columns."""
    return Counter(repr(sorted(row.items())) for row in rows)


def crash_at(nth: int, call: Callable[[], object]) -> str | None:
    """Die at the nth crash point that ``call`` reaches; None if it ended before."""
    points = itertools.count()

    def hook(name: str) -> None:
        if next(points) == nth:
            raise SimulatedCrash(name)

    with hooked(hook):
        try:
            call()
        except SimulatedCrash as crash:
            return str(crash)
    return None


def was_there(nth: int, point: object, what: str) -> bool:
    """Whether there was an nth crash point; without a single one nothing was proven."""
    assert point or nth, (
        f"{what} reached no crash point, so no crash in it was tried. Crash points are yours to "
        "place: call beadline.sink.reach(name) between any two acts of which a crash could "
        "separate one from the other"
    )
    return bool(point)


def does_not_apply(reason: str) -> None:
    """Say why a case has nothing to ask; it passes, because nothing was promised."""
    print(f"does not apply: {reason}")


def only_exactly_once(case: Case) -> Case:
    """Ask only sinks that declare exactly-once."""

    @functools.wraps(case)
    def asked(harness: SinkHarness) -> None:
        capabilities = Target(harness).capabilities
        if capabilities.guarantee < Guarantee.EXACTLY_ONCE:
            return does_not_apply(f"the sink declares {capabilities.guarantee}")
        return case(harness)

    return asked
