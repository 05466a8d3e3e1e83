"""The order of a commit of files: the mark says that an epoch is finished, so it comes last."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from beadline.errors import TargetRestored
from beadline.files.local import LocalFiles
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked
from beadline.sink import Outcome, Prepared
from beadline.sinks import FileSink
from beadline.sinks.files.marks import Marks
from beadline.sinks.files.sink import PendingFiles
from beadline.testing.suite.durable import Disk, watched

QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")
EPOCH = EpochId(QUERY, 0, "b" * 32, 1)
ID = PartId("orders", "a" * 32, "files", 1, 0, 0, 0)
NAMES = ("day=1/one.json", "day=1/two.json", "day=2/three.json")


class Crash(BaseException):
    pass


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path / "out"), format="json")


@pytest.fixture
def part(sink: FileSink) -> Prepared[PendingFiles]:
    """A pending part as Spark's writer leaves it."""
    folder = Path(sink.pending.removeprefix("file:")) / str(ID)
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")
    sizes = tuple((name, 3) for name in sorted(NAMES))
    return Prepared(ID, 3, PendingFiles(sink.target, f"{sink.pending}/{ID}", sizes))


def finished(sink: FileSink) -> int:
    return sum(path.is_file() for path in Path(sink.path).rglob("*"))


def test_there_is_no_mark_before_every_file_is_finished_durably(
    sink: FileSink, part: Prepared[PendingFiles]
) -> None:
    """A mark before the renames would say of files that a crash left pending: already there."""
    seen: list[tuple[str, bool, int]] = []
    disk = Disk()

    def look(point: str) -> None:
        seen.append((point, sink.last_seen(QUERY, ID.sink) is not None, finished(sink)))
        if point == "files.renamed":
            target = str(Path(sink.path))
            assert [problem for problem in disk.problems() if target in problem] == []

    with watched(disk):  # as ``prepare`` does
        LocalFiles().sync_files(part.committable.folder, list(NAMES))
    with watched(disk), hooked(look):
        assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.COMMITTED}
    renaming = [("files.renaming", False, 1), ("files.renaming", False, 2)]
    assert seen == [*renaming, ("files.renamed", False, 3)]
    assert disk.problems() == []
    found = sink.last_seen(QUERY, ID.sink)
    assert found is not None
    assert found.epoch == 0


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_crash_among_the_renames_is_finished_by_the_next_commit(
    sink: FileSink, part: Prepared[PendingFiles], nth: int
) -> None:
    left = nth

    def crash(point: str) -> None:
        nonlocal left
        if left == 0:
            raise Crash(point)
        left -= 1

    with hooked(crash), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    sink.commit(EPOCH, [part])
    assert finished(sink) == len(NAMES)
    assert list(sink.in_doubt(QUERY, "under-test")) == []


def test_a_pending_folder_is_moving_durably_before_a_file_leaves_it(
    sink: FileSink, part: Prepared[PendingFiles]
) -> None:
    """Else a power cut brings the old name back, with files missing: that is how loss looks."""
    disk, seen = Disk(), []

    def look(point: str) -> None:
        seen.append([problem for problem in disk.problems() if ".moving:" in problem])

    with watched(disk), hooked(look):
        sink.commit(EPOCH, [part])
    assert seen == [[]] * 3


def pending(part: Prepared[PendingFiles]) -> Path:
    return Path(part.committable.folder.removeprefix("file:"))


@pytest.mark.parametrize("gone", [1, 3])
def test_a_part_that_is_not_whole_is_lost_and_left_where_it_is(
    sink: FileSink, part: Prepared[PendingFiles], gone: int
) -> None:
    for name in NAMES[:gone]:
        (pending(part) / name).unlink()
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.LOST}
    assert finished(sink) == 0
    assert sum(path.is_file() for path in pending(part).rglob("*")) == len(NAMES) - gone
    assert sink.last_seen(QUERY, ID.sink) is None


def test_a_part_that_was_cut_short_is_lost(sink: FileSink, part: Prepared[PendingFiles]) -> None:
    (pending(part) / NAMES[0]).write_text("{")
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.LOST}
    assert finished(sink) == 0


def test_a_late_commit_moves_nothing_and_leaves_the_newer_mark(
    sink: FileSink, part: Prepared[PendingFiles]
) -> None:
    """A zombie's pending folder came back from somewhere; readers have consumed its files."""
    files = LocalFiles()
    marks = Marks(files, sink.target, sink.pending, QUERY.name)
    marks.write("files", replace(EPOCH, number=3))
    files.make_folder(sink.target)
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.ALREADY_COMMITTED}
    assert finished(sink) == 0
    marks.write("files", EPOCH)  # a mark that comes late
    assert marks.newest("files", QUERY.incarnation) == 3


@pytest.fixture
def committed(sink: FileSink, part: Prepared[PendingFiles]) -> Path:
    """A target that holds epoch 0."""
    sink.commit(EPOCH, [part])
    return Path(sink.path)


@pytest.fixture
def second(sink: FileSink) -> Prepared[PendingFiles]:
    """The pending part of the next epoch."""
    id_ = replace(ID, epoch=1)
    folder = Path(sink.pending.removeprefix("file:")) / str(id_)
    folder.mkdir(parents=True)
    (folder / "four.json").write_text("{}\n")
    return Prepared(id_, 1, PendingFiles(sink.target, f"{sink.pending}/{id_}", (("four.json", 3),)))


@pytest.mark.parametrize("older", [False, True])
def test_a_target_that_was_made_again_or_restored_alone_takes_nothing(
    sink: FileSink, committed: Path, second: Prepared[PendingFiles], tmp_path: Path, older: bool
) -> None:
    """What lies beside it knows nothing of that: it must be the target itself that remembers."""
    shutil.copytree(committed, tmp_path / "backup")
    next_, third = replace(EPOCH, number=1, previous=0), replace(EPOCH, number=2, previous=1)
    assert sink.commit(next_, [second]).outcomes == {second.id: Outcome.COMMITTED}
    shutil.rmtree(committed)
    if older:
        (tmp_path / "backup").rename(committed)
    else:
        committed.mkdir()
    seen = sink.last_seen(QUERY, ID.sink)
    assert (seen and seen.epoch) == (0 if older else None)
    again = Prepared(replace(ID, epoch=2), 1, second.committable)
    before = finished(sink)
    with pytest.raises(TargetRestored, match="has acknowledged epoch 1 before"):
        sink.commit(third, [again])
    assert finished(sink) == before


def test_a_target_of_an_earlier_version_goes_on(
    sink: FileSink, committed: Path, second: Prepared[PendingFiles]
) -> None:
    """Its marks were files beside it; the next commit moves them."""
    marks = Marks(LocalFiles(), sink.target, sink.pending, QUERY.name)
    former = Path(marks.former.removeprefix("file:"))
    former.mkdir(parents=True)
    (mark,) = (committed / ".beadline" / QUERY.name).iterdir()
    (former / mark.name).touch()
    shutil.rmtree(committed / ".beadline")
    seen = sink.last_seen(QUERY, ID.sink)
    assert seen is not None
    assert seen.epoch == 0
    expecting = replace(EPOCH, number=1, previous=0)
    assert sink.commit(expecting, [second]).outcomes == {second.id: Outcome.COMMITTED}
    assert list(former.iterdir()) == [], "or it would answer for a target that is made again"
    shutil.rmtree(committed)
    committed.mkdir()
    assert sink.last_seen(QUERY, ID.sink) is None


def test_a_reader_that_takes_all_files_leaves_the_mark(sink: FileSink, committed: Path) -> None:
    """However it lists them: there is no file that is not finished, hidden or not."""
    found = [path for path in committed.rglob("*") if path.is_file()]
    assert {path.suffix for path in found} == {".json"}
    for path in found:
        path.unlink()
    seen = sink.last_seen(QUERY, ID.sink)
    assert seen is not None
    assert seen.epoch == 0
