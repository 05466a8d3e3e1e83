"""The order of a commit of files: the mark says that an epoch is finished, so it comes last."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import CommitFailed, TargetRestored, WrongCheckpoint
from beadline.files.local import LocalFiles
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked
from beadline.sink import Outcome, Prepared
from beadline.sinks import FileSink
from beadline.sinks.files.marks import Mark, Marks
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
    before = [("files.begun", False, 0), ("files.moving", False, 0)]
    assert seen == [*before, *renaming, ("files.renamed", False, 3)]
    assert disk.problems() == []
    found = sink.last_seen(QUERY, ID.sink)
    assert found is not None
    assert found.epoch == 0


@pytest.mark.parametrize("nth", range(5))
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
    assert seen == [[]] * 5


def test_orphans_of_a_sink_that_is_gone_lie_in_a_shared_staging_folder(tmp_path: Path) -> None:
    """Rule 27: its target's folder there is another one; what is not ours is left alone."""
    staging = tmp_path / "staging"
    gone, kept = (FileSink(str(tmp_path / name), staging=str(staging)) for name in ("gone", "kept"))
    ids = [replace(ID, sink="gone"), replace(ID, sink="kept")]
    stranger = replace(ID, sink="gone", incarnation="c" * 32)
    for one, id_ in zip((gone, kept, gone), (*ids, stranger), strict=True):
        folder = Path(one.pending.removeprefix("file:")) / str(id_)
        folder.mkdir(parents=True)
        (folder / "one.json").write_text("{}\n")
    (staging / f"file-{'0' * 12}").write_text("no folder")
    (staging / "other" / str(ids[0])).mkdir(parents=True)
    found = list(kept.in_doubt(QUERY, "kept"))
    assert [part.id for part in found] == [ids[1], ids[0]]
    assert [part.committable.files for part in found] == [(("one.json", 3),)] * 2
    kept.abort(found)
    assert list(kept.in_doubt(QUERY, "kept")) == []
    assert [path.name for path in staging.glob("gone-*/*")] == [str(stranger)]
    assert (staging / "other" / str(ids[0])).exists()


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
    marks = Marks(LocalFiles(), sink.target, sink.pending, QUERY.name)
    newest = replace(EPOCH, number=3)
    begun = marks.begin(None, "files", newest)
    assert begun is not None
    with pytest.raises(CommitFailed, match="has begun epoch 3 and does not hold this one"):
        sink.commit(EPOCH, [part])
    assert marks_in(sink) == [str(begun)]
    assert marks.finish(begun, newest)
    assert marks.finish(begun, EPOCH), "another process has finished it"
    assert marks.begin(None, "files", EPOCH) is None, "it looked when there was nothing"
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.ALREADY_COMMITTED}
    assert finished(sink) == 0
    assert marks_in(sink) == [f"files~{QUERY.incarnation}~3~{EPOCH.nonce}"]


def marks_in(sink: FileSink) -> list[str]:
    folder = Path(sink.path) / ".beadline" / QUERY.name
    return sorted(path.name for path in folder.glob("*"))


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
    former = Path(marks.former[0].removeprefix("file:"))
    former.mkdir(parents=True)
    (mark,) = (committed / ".beadline" / QUERY.name).iterdir()
    (former / mark.name).touch()
    shutil.rmtree(committed / ".beadline")
    elsewhere = replace(sink, staging=str(committed.parent / "staging"))
    for one in (sink, elsewhere):  # `staging` may be set with the upgrade
        seen = one.last_seen(QUERY, ID.sink)
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


SECOND = replace(EPOCH, number=1, previous=0)
POINTS = [("files.renaming", 0), ("files.renaming", 1), ("files.renamed", 0)]


def dying(at: str, nth: int) -> Callable[[str], None]:
    """Return a hook that dies when a point is passed for the nth time, counted from 0."""
    left = nth

    def crash(point: str) -> None:
        nonlocal left
        if point == at:
            if left == 0:
                raise Crash(point)
            left -= 1

    return crash


@pytest.mark.parametrize(("point", "nth"), POINTS)
@pytest.mark.parametrize("after", ["deleted", "made again"])
def test_a_target_that_is_gone_after_a_crash_took_files_of_the_first_epoch_with_it(
    sink: FileSink, part: Prepared[PendingFiles], point: str, nth: int, after: str
) -> None:
    """They are not taken for files that a reader has consumed: no mark says that they came."""
    target = Path(sink.path)
    with hooked(dying(point, nth)), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    target.rename(target.with_name("away"))
    if after == "made again":
        target.mkdir()
    for _ in range(2):
        with pytest.raises(TargetRestored, match=r"files of this epoch were .*files@0") as caught:
            sink.commit(EPOCH, [part])
        assert f"{nth + 1 if point == 'files.renaming' else 3} files" in str(caught.value)
        assert finished(sink) == 0
        assert target.exists() == (after == "made again")
    if target.exists():
        target.rmdir()
    target.with_name("away").rename(target)
    assert ID in sink.commit(EPOCH, [part]).outcomes
    assert finished(sink) == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("where", ["out", ".out.beadline"])
@pytest.mark.parametrize("point", ["files.begun", "files.renaming"])
def test_a_folder_that_cannot_be_read_is_no_proof_of_anything(
    sink: FileSink,
    part: Prepared[PendingFiles],
    point: str,
    where: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule 12: parts that are only out of sight are not lost, nor is a target restored."""
    with hooked(dying(point, 0)), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    hidden = str(Path(sink.path).with_name(where))

    def refusing(look: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: str, *args: Any, **settings: Any) -> Any:
            if str(path).startswith(hidden):
                raise OSError(code, os.strerror(code), path)
            return look(path, *args, **settings)

        return call

    with monkeypatch.context() as patch:
        for name in ("lstat", "scandir"):
            patch.setattr(os, name, refusing(getattr(os, name)))
        with pytest.raises(OSError, match=os.strerror(code)):
            sink.commit(EPOCH, [part])
        if where == "out":
            with pytest.raises(OSError, match=os.strerror(code)):
                sink.last_seen(QUERY, ID.sink)
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.COMMITTED}
    assert finished(sink) == 3


@pytest.mark.parametrize("hidden", ["staging", "staging/gone-000000000000"])
def test_a_shared_staging_folder_need_not_be_listed(
    tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that anybody may write to and nobody may list; its own target's folder is enough."""
    staging = tmp_path / "staging"
    sink = FileSink(str(tmp_path / "kept"), staging=str(staging))
    (Path(sink.pending.removeprefix("file:")) / str(ID)).mkdir(parents=True)
    (staging / f"gone-{'0' * 12}").mkdir()
    listed = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(tmp_path / hidden):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert [part.id for part in sink.in_doubt(QUERY, "kept")] == [ID]


@pytest.mark.parametrize("point", ["files.begun", "files.moving"])
@pytest.mark.parametrize("after", ["deleted", "made again"])
def test_a_target_that_is_gone_before_a_file_came_into_it_took_nothing_with_it(
    sink: FileSink, part: Prepared[PendingFiles], point: str, after: str
) -> None:
    target = Path(sink.path)
    with hooked(dying(point, 0)), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    assert finished(sink) == 0
    target.rename(target.with_name("away"))
    if after == "made again":
        target.mkdir()
    assert sink.commit(EPOCH, [part]).outcomes == {ID: Outcome.COMMITTED}
    assert finished(sink) == 3


@pytest.mark.parametrize(("point", "nth"), [("files.renaming", 0), ("files.renamed", 0)])
def test_a_target_that_is_restored_after_a_crash_lacks_files_of_the_epoch_in_hand(
    sink: FileSink, part: Prepared[PendingFiles], tmp_path: Path, point: str, nth: int
) -> None:
    """A whole copy of the epoch before: by its mark alone it would be what it should be."""
    zero = replace(ID, epoch=0)
    sink.commit(EPOCH, [part])
    shutil.copytree(sink.path, tmp_path / "copy")
    id_ = replace(zero, epoch=1)
    folder = Path(sink.pending.removeprefix("file:")) / str(id_)
    folder.mkdir(parents=True)
    for name in ("four.json", "five.json"):
        (folder / name).write_text("{}\n")
    files = (("five.json", 3), ("four.json", 3))
    next_ = Prepared(id_, 2, PendingFiles(sink.target, f"{sink.pending}/{id_}", files))
    with hooked(dying(point, nth)), pytest.raises(Crash):
        sink.commit(SECOND, [next_])
    seen = sink.last_seen(QUERY, ID.sink)
    assert seen is not None
    assert (seen.epoch, seen.nonce) == (0, EPOCH.nonce), "what is begun is not whole"
    shutil.rmtree(sink.path)
    shutil.copytree(tmp_path / "copy", sink.path)
    with pytest.raises(TargetRestored, match="files@1"):
        sink.commit(SECOND, [next_])
    assert finished(sink) == 3
    # Given up by name, it is swept, and the query continues.
    sink.abort([next_])
    id_ = replace(zero, epoch=2)
    folder = Path(sink.pending.removeprefix("file:")) / str(id_)
    folder.mkdir()
    (folder / "six.json").write_text("{}\n")
    third = Prepared(id_, 1, PendingFiles(sink.target, f"{sink.pending}/{id_}", (("six.json", 3),)))
    given_up = replace(EPOCH, number=2, previous=0)
    assert sink.commit(given_up, [third]).outcomes == {id_: Outcome.COMMITTED}


def test_that_an_epoch_is_begun_is_durable_before_a_file_comes_in(
    sink: FileSink, committed: Path, second: Prepared[PendingFiles]
) -> None:
    """Else a power cut leaves files out of ``.moving``, and nothing that says where they went."""
    disk, seen = Disk(), []

    def look(point: str) -> None:
        seen.append([problem for problem in disk.problems() if "~to~1:" in problem])

    with watched(disk), hooked(look):
        sink.commit(SECOND, [second])
    assert seen == [[]] * 3
    assert not [
        problem for problem in disk.problems() if ".beadline/" in problem and "~1~" in problem
    ]


def test_an_epoch_that_was_begun_and_given_up_makes_room_for_the_next(
    sink: FileSink, part: Prepared[PendingFiles], second: Prepared[PendingFiles]
) -> None:
    with hooked(dying("files.renaming", 0)), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    assert marks_in(sink) == [f"files~{QUERY.incarnation}~-1~~to~0"]
    sink.abort([part])
    next_ = replace(EPOCH, number=1)
    assert sink.commit(next_, [second]).outcomes == {second.id: Outcome.COMMITTED}
    assert marks_in(sink) == [f"files~{QUERY.incarnation}~1~{EPOCH.nonce}"]


@pytest.mark.parametrize("point", ["files.renaming", "files.renamed"])
@pytest.mark.parametrize("after", ["deleted", "made again", "restored"])
def test_a_target_that_is_replaced_during_a_commit_is_reported_by_that_commit(
    sink: FileSink,
    part: Prepared[PendingFiles],
    second: Prepared[PendingFiles],
    tmp_path: Path,
    point: str,
    after: str,
) -> None:
    sink.commit(replace(EPOCH, number=0), [replace(second, id=replace(ID, epoch=0))])
    target, copy = Path(sink.path), tmp_path / "copy"
    shutil.copytree(target, copy)

    def exchange(passed: str) -> None:
        if passed == point and copy.exists():
            shutil.rmtree(target)
            copy.rename(target)
            if after != "restored":
                target.rename(tmp_path / "away")
            if after == "made again":
                target.mkdir()

    with hooked(exchange), pytest.raises(TargetRestored, match="while"):
        sink.commit(SECOND, [part])
    assert target.exists() == (after != "deleted"), "it must not come back with a gap"
    seen = sink.last_seen(QUERY, ID.sink)
    assert (seen and seen.epoch) == (0 if after == "restored" else None)
    if after == "restored":
        with pytest.raises(TargetRestored, match="files@1"):
            sink.commit(SECOND, [part])


def test_the_mark_of_another_sink_in_the_folder_does_not_answer(
    sink: FileSink, committed: Path
) -> None:
    """What the start asks is what the commit will ask."""
    assert sink.last_seen(QUERY, "files") is not None
    assert sink.last_seen(QUERY, "other") is None
    stranger = sink.last_seen(replace(QUERY, incarnation="c" * 32), "other")
    assert stranger is not None
    assert stranger.incarnation == QUERY.incarnation, "of another query of the name, any"


def test_a_first_epoch_that_another_query_of_the_name_has_begun_is_noticed(
    sink: FileSink, part: Prepared[PendingFiles]
) -> None:
    with hooked(dying("files.renaming", 0)), pytest.raises(Crash):
        sink.commit(EPOCH, [part])
    other = replace(QUERY, incarnation="c" * 32)
    seen = sink.last_seen(other, ID.sink)
    assert seen is not None
    assert (seen.incarnation, seen.epoch) == (QUERY.incarnation, 0)
    with pytest.raises(WrongCheckpoint, match="holds epoch 0 of another query"):
        sink.commit(replace(EPOCH, query=other), [part])


def test_of_two_marks_the_older_counts_until_its_loss_is_given_up(
    sink: FileSink, committed: Path, second: Prepared[PendingFiles], tmp_path: Path
) -> None:
    """``rm -rf out/*; cp -a backup/. out/`` leaves the newest mark where it is."""
    shutil.copytree(committed, tmp_path / "backup")
    sink.commit(SECOND, [second])
    for path in committed.glob("[!.]*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "backup", committed, dirs_exist_ok=True)
    assert len(marks_in(sink)) == 2
    seen = sink.last_seen(QUERY, ID.sink)
    assert seen is not None
    assert seen.epoch == 0
    id_ = replace(ID, epoch=2)
    folder = Path(sink.pending.removeprefix("file:")) / str(id_)
    folder.mkdir(parents=True)
    (folder / "five.json").write_text("{}\n")
    files = (("five.json", 3),)
    third = Prepared(id_, 1, PendingFiles(sink.target, f"{sink.pending}/{id_}", files))
    with pytest.raises(TargetRestored, match="acknowledged epoch 1 before and now holds epoch 0"):
        sink.commit(replace(EPOCH, number=2, previous=1), [third])
    given_up = replace(EPOCH, number=2, previous=0)
    assert sink.commit(given_up, [third]).outcomes == {id_: Outcome.COMMITTED}
    assert marks_in(sink) == [f"files~{QUERY.incarnation}~2~{EPOCH.nonce}"]


@pytest.mark.parametrize("next_", [None, 7])
def test_a_mark_says_what_it_is(next_: int | None) -> None:
    mark = Mark("files", "a" * 32, 3, "no~to~9/nce", next_)
    assert Mark.parse(str(mark)) == mark
    assert "/" not in str(mark)
    for name in (f"{mark}~to~x", "files~a~-2~n", "files~a~-1~n", "files~a~3", "notes"):
        assert Mark.parse(name) is None
