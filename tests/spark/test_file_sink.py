"""``FileSink`` on a real Spark: readers see each decided row once, whatever dies in a commit."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beadline.errors import CommitFailed
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked
from beadline.sink import CommitResult, Outcome, Part, Prepared, Seen
from beadline.sinks import FileSink
from beadline.sinks.files.sink import PendingFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = QueryId("orders", "a" * 32, "file:/nowhere/checkpoint")
OTHER = QueryId("orders", "b" * 32, "file:/nowhere/other")
Commit = Callable[[int], CommitResult]


class Crash(BaseException):
    """Not an Exception: nothing may catch a death."""


def part(epoch: int, generation: int = 1, query: QueryId = QUERY) -> Part:
    return Part(PartId(query.name, query.incarnation, "out", generation, epoch, 0, 0))


def frame_of(spark: SparkSession, start: int, end: int, parts: int = 2) -> DataFrame:
    return spark.range(start, end, 1, parts).selectExpr("id", "id % 3 AS day", "'x' AS word")


def prepared(sink: FileSink, frame: DataFrame, at: Part) -> Prepared[PendingFiles]:
    """Prepare, and go through JSON, as a decision does."""
    committable = sink.prepare(frame, at)
    assert committable is not None
    stored = json.loads(json.dumps(committable.to_json()))
    return Prepared(at.id, 0, PendingFiles.from_json(stored))


def epoch(number: int, query: QueryId = QUERY) -> EpochId:
    return EpochId(query, number, f"nonce-{number}", 1_000 + number)


def outcome(result: CommitResult) -> Outcome:
    (only,) = set(result.outcomes.values())
    return only


def files_in(folder: Path) -> list[Path]:
    """What any reader finds, hidden or not."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def ids(spark: SparkSession, folder: Path) -> Counter[int]:
    rows = spark.read.option("recursiveFileLookup", "true").parquet(str(folder)).select("id")
    return Counter(row.id for row in rows.collect())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data" / "out"


@pytest.mark.parametrize("format_", ["parquet", "orc", "json", "csv"])
def test_each_format_comes_back(spark: SparkSession, out: Path, format_: str) -> None:
    sink = FileSink(str(out), format_, options={"header": True} if format_ == "csv" else {})
    for number in range(2):
        frame = frame_of(spark, number * 10, number * 10 + 10)
        ready = prepared(sink, frame, part(number))
        assert len(files_in(out)) == number * 2, "prepared is not visible"
        assert not [path for path in files_in(out.parent) if path.suffix == ".crc"]
        assert outcome(sink.commit(epoch(number), [ready])) is Outcome.COMMITTED
    reader = spark.read.schema("id long, day long, word string").option("header", "true")
    rows = reader.format(format_).load(str(out)).collect()
    assert sorted(rows) == [(i, i % 3, "x") for i in range(20)]
    assert all(path.name.endswith(f".{format_}") for path in files_in(out))
    assert all(path.name.startswith("orders-00000000") for path in files_in(out))
    assert list(sink.in_doubt(QUERY, "out")) == []
    assert sink.last_seen(QUERY, "out") == Seen(QUERY.incarnation, 1, "nonce-1")


def test_partitioned_folders(spark: SparkSession, out: Path) -> None:
    sink = FileSink(str(out), partition_by=("day", "word"))
    ready = prepared(sink, frame_of(spark, 0, 30), part(0))
    assert not out.exists()
    sink.commit(epoch(0), [ready])
    assert {path.parent.relative_to(out).as_posix() for path in files_in(out)} == {
        f"day={day}/word=x" for day in range(3)
    }
    rows = spark.read.parquet(str(out)).where("day = 1").collect()
    assert sorted(row.id for row in rows) == list(range(1, 30, 3))


@pytest.mark.parametrize("format_", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("options", [{}, {"header": True}, {"compression": "snappy"}])
def test_an_empty_epoch_leaves_nothing(
    spark: SparkSession, out: Path, format_: str, options: dict[str, object]
) -> None:
    if options.get("compression") and format_ in ("json", "csv"):
        options = {"compression": "gzip"}
    sink = FileSink(str(out), format_, options=options)
    assert sink.prepare(frame_of(spark, 0, 0), part(0)) is None
    assert list(sink.in_doubt(QUERY, "out")) == []
    assert files_in(out.parent) == []
    # Rows in the second task only: the first task's file without rows is left out.
    last = prepared(sink, frame_of(spark, 0, 10).where("id = 9"), part(1))
    assert len(last.committable.files) == 1
    first = prepared(sink, frame_of(spark, 0, 10).where("id = 0"), part(2))
    assert len(first.committable.files) == 1
    sink.commit(epoch(1), [last])
    sink.commit(epoch(2), [first])
    reader = spark.read.schema("id long").options(**options)  # type: ignore[arg-type]
    assert sorted(r.id for r in reader.format(format_).load(str(out)).collect()) == [0, 9]


def moments(sink: FileSink, ready: Prepared[PendingFiles]) -> list[str]:
    """Every crash point that a commit reaches, in order."""
    passed: list[str] = []
    with hooked(passed.append):
        sink.commit(epoch(ready.id.epoch), [ready])
    return passed


def test_a_crash_at_every_point_of_a_commit(spark: SparkSession, out: Path) -> None:
    """Die at the n-th point, for every n; commit again; the rows are there once."""
    sink = FileSink(str(out), partition_by=("day",))
    passed = moments(sink, prepared(sink, frame_of(spark, 0, 9), part(0)))
    renaming = ["files.renaming"] * 5
    assert passed == ["files.begun", "files.moving", *renaming, "files.renamed"]
    for number in range(1, len(passed) + 1):
        ready = prepared(sink, frame_of(spark, number * 9, number * 9 + 9), part(number))
        left = [number]

        def die(_: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Crash

        with pytest.raises(Crash), hooked(die):
            sink.commit(epoch(number), [ready])
        assert sink.last_seen(QUERY, "out") == Seen(
            QUERY.incarnation, number - 1, f"nonce-{number - 1}"
        )
        again = outcome(sink.commit(epoch(number), [ready]))
        all_were_renamed = number == len(passed)
        assert again is (Outcome.ALREADY_COMMITTED if all_were_renamed else Outcome.COMMITTED)
        assert list(sink.in_doubt(QUERY, "out")) == []
    assert ids(spark, out) == Counter(range(9 * (len(passed) + 1)))


def test_a_file_consumed_between_crash_and_recovery_stays_gone(
    spark: SparkSession, out: Path
) -> None:
    """A reader may delete a finished file before its epoch is marked; that is not a loss."""
    sink = FileSink(str(out))
    ready = prepared(sink, frame_of(spark, 0, 10), part(0))

    def die(point: str) -> None:
        if point not in ("files.begun", "files.moving"):
            raise Crash

    with pytest.raises(Crash), hooked(die):
        sink.commit(epoch(0), [ready])
    (finished,) = files_in(out)
    finished.unlink()
    assert outcome(sink.commit(epoch(0), [ready])) is Outcome.COMMITTED
    assert len(files_in(out)) == 1
    assert finished not in files_in(out)


def test_a_late_commit_changes_nothing(spark: SparkSession, out: Path) -> None:
    """Files consumed, newer epochs finished, then a zombie commits again what it decided."""
    sink = FileSink(str(out), partition_by="day")
    ready = [prepared(sink, frame_of(spark, n * 9, n * 9 + 9), part(n)) for n in range(3)]
    for number, one in enumerate(ready):
        sink.commit(epoch(number), [one])
    shutil.rmtree(out / "day=1")
    before = files_in(out.parent)
    for number in (0, 2, 1):
        result = sink.commit(epoch(number), [ready[number]])
        assert outcome(result) is Outcome.ALREADY_COMMITTED
    assert files_in(out.parent) == before
    assert sink.last_seen(QUERY, "out") == Seen(QUERY.incarnation, 2, "nonce-2")


def test_a_zombie_that_sleeps_before_its_mark(spark: SparkSession, out: Path) -> None:
    """It finished the renames of epoch 0, slept over epochs 0 to 2, and marks epoch 0 at last."""
    sink = FileSink(str(out))
    first = prepared(sink, frame_of(spark, 0, 10), part(0))

    def sleep(point: str) -> None:
        if point != "files.renamed":
            return
        with hooked(lambda _: None):
            sink.commit(epoch(0), [first])
            for number in (1, 2):
                frame = frame_of(spark, number * 10, number * 10 + 10)
                sink.commit(epoch(number), [prepared(sink, frame, part(number, generation=2))])

    with hooked(sleep):
        sink.commit(epoch(0), [first])
    assert sink.last_seen(QUERY, "out") == Seen(QUERY.incarnation, 2, "nonce-2")
    assert ids(spark, out) == Counter(range(30))
    frame = frame_of(spark, 30, 40)
    sink.commit(epoch(3), [prepared(sink, frame, part(3, generation=2))])
    marks = list((out / ".beadline" / QUERY.name).iterdir())
    assert len(marks) == 1, "history leaves nothing behind"
    assert files_in(out.parent / ".out.beadline") == []


def test_two_processes_commit_at_once(spark: SparkSession, out: Path) -> None:
    """Each file has one winner, both are told that the epoch is finished."""
    sink = FileSink(str(out), partition_by=("id",))
    for number in range(5):
        frame = frame_of(spark, number * 40, number * 40 + 40)
        ready = prepared(sink, frame, part(number))
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(sink.commit, epoch(number), [ready]) for _ in range(4)]
        assert {outcome(one.result()) for one in done} <= {
            Outcome.COMMITTED,
            Outcome.ALREADY_COMMITTED,
        }
        assert list(sink.in_doubt(QUERY, "out")) == []
    found = [path.parent.name for path in files_in(out)]
    assert sorted(found) == sorted(f"id={n}" for n in range(200))


def test_what_is_proven_lost(spark: SparkSession, out: Path) -> None:
    sink = FileSink(str(out))
    ready = prepared(sink, frame_of(spark, 0, 10), part(0))
    pending = Path(ready.committable.folder.removeprefix("file:"))
    name, _ = ready.committable.files[0]
    (pending / name).unlink()
    for _ in range(2):
        assert outcome(sink.commit(epoch(0), [ready])) is Outcome.LOST
        assert files_in(out) == []
        assert sink.last_seen(QUERY, "out") is None
        shutil.rmtree(pending, ignore_errors=True)
    again = prepared(sink, frame_of(spark, 0, 10), part(0))
    assert outcome(sink.commit(epoch(0), [again])) is Outcome.COMMITTED
    assert ids(spark, out) == Counter(range(10))


def test_staging_deleted_from_outside(spark: SparkSession, out: Path) -> None:
    """Finished files are a proof too; half of them are a proof of nothing, and it stops.

    The target was restored from a copy without empty folders, so that it has no mark.
    """
    sink = FileSink(str(out))
    ready = prepared(sink, frame_of(spark, 0, 10), part(0))
    sink.commit(epoch(0), [ready])
    shutil.rmtree(out.parent / ".out.beadline")
    shutil.rmtree(out / ".beadline")
    assert outcome(sink.commit(epoch(0), [ready])) is Outcome.ALREADY_COMMITTED
    shutil.rmtree(out / ".beadline")
    files_in(out)[0].unlink()
    with pytest.raises(CommitFailed, match="1 of 2 files are finished"):
        sink.commit(epoch(0), [ready])
    assert len(files_in(out)) == 1


def test_a_finished_file_is_never_overwritten(spark: SparkSession, out: Path) -> None:
    sink = FileSink(str(out))
    first = prepared(sink, frame_of(spark, 0, 10, 1), part(0))
    sink.commit(epoch(0), [first])
    (finished,) = files_in(out)
    content = finished.read_bytes()
    second = prepared(sink, frame_of(spark, 10, 20, 1), part(1))
    name = finished.name.replace("-000000000-", "-000000001-")
    spark_name, _ = first.committable.files[0]
    other_name, _ = second.committable.files[0]
    squatter = out / name.replace(spark_name, other_name)
    shutil.copy(finished, squatter)
    with pytest.raises(CommitFailed, match="cannot be renamed"):
        sink.commit(epoch(1), [second])
    assert squatter.read_bytes() == content
    squatter.unlink()
    assert outcome(sink.commit(epoch(1), [second])) is Outcome.COMMITTED
    assert ids(spark, out) == Counter(range(20))
