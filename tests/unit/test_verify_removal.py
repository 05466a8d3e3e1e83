"""After ``beadline verify`` nothing is left, and what is left is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from beadline.decisions import FileStore
from beadline.decisions.store import LOG_FOLDER
from beadline.errors import UsageError
from beadline.files.local import LocalFiles
from beadline.ids import PartId
from beadline.sink import Guarantee
from beadline.verify.report import Verification
from beadline.verify.rounds import Round
from beadline.verify.run import Options, Verifier
from beadline.verify.source_range import RangeLimits
from beadline.verify.task import CHECKPOINT, Inspection, Task
from tests.kill.broken.sinks import OwnSink, Staged
from tests.unit.logs import QUERY, opened


class LockedSink(OwnSink):
    """Cannot be removed while anything is prepared, as a table of PostgreSQL."""

    def remove_scratch(self) -> None:
        if list(self.in_doubt(QUERY, "under-test")):
            raise UsageError("canceling statement due to lock timeout")
        super().remove_scratch()


class StuckSink(LockedSink):
    """Its server is away."""

    def abort(self, parts: Sequence[Staged]) -> None:
        raise OSError("no answer")


class TalkativeSink(OwnSink):
    """Its client library says more than it should."""

    def remove_scratch(self) -> None:
        raise OSError("cannot reach shop://anna:hunter2@host")


def a_round(folder: Path, sink: Any, *, in_place: bool = False) -> Round:
    """A round that was left with a part in doubt."""
    store = FileStore(LocalFiles(), f"file:{folder / 'round' / CHECKPOINT}/{LOG_FOLDER}")
    store.make_folder()
    opened(store)
    staging = Path(str(sink.staging_area.folder).removeprefix("file:"))
    staging.mkdir(parents=True)
    (staging / str(PartId(QUERY.name, QUERY.incarnation, "own", 1, 0, 0, 0))).touch()
    task = Task("job.py", {}, "v1", RangeLimits())
    found = Inspection("orders", Guarantee.EXACTLY_ONCE, (), (), (), stateful=False)
    return Round(folder / "round", folder, task, found, {"own": sink}, scratch_targets=not in_place)


def test_what_is_in_doubt_is_aborted_before_its_target_is_removed(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "own.db", "t")
    made = a_round(tmp_path, sink)
    assert list(made.in_doubt()["own"])
    assert made.remove() == []
    assert not list(sink.in_doubt(QUERY, "under-test"))
    assert not made.folder.exists()


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (told,) = a_round(tmp_path, StuckSink(tmp_path / "own.db", "t")).remove()
    assert "scratch target of own (own-t)" in told
    assert "lock timeout" in told


def test_no_words_of_a_client_library_are_repeated(tmp_path: Path) -> None:
    (told,) = a_round(tmp_path, TalkativeSink(tmp_path / "own.db", "t")).remove()
    assert told.endswith("OSError")
    assert "hunter2" not in told


def test_the_real_target_is_left_alone(tmp_path: Path) -> None:
    sink = LockedSink(tmp_path / "own.db", "t")
    assert a_round(tmp_path, sink, in_place=True).remove() == []
    assert list(sink.in_doubt(QUERY, "under-test"))


class Half(Verifier):
    """Comes to its end at once."""

    failure: Exception | None = None

    def _run(self) -> Verification:
        if self.failure is not None:
            raise self.failure
        return Verification("j", "q", 1, 1, {}, [], (), ("a note",), 1.0)


def test_what_is_left_is_in_the_report_or_logged(tmp_path: Path) -> None:
    said: list[str] = []
    half = Half(Options("j", 1), said.append)
    half.kept.append(a_round(tmp_path / "one", StuckSink(tmp_path / "one" / "own.db", "t")))
    one, two = half.run().notes
    assert one == "a note"
    assert "is left" in two
    half = Half(Options("j", 1), said.append)
    half.failure = UsageError("no")
    half.kept.append(a_round(tmp_path / "two", StuckSink(tmp_path / "two" / "own.db", "t")))
    with pytest.raises(UsageError, match="no"):
        half.run()
    assert [text for text in said if "is left" in text]
