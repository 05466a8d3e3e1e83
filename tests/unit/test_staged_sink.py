"""``StagedSink``: what the base does around a sink's own write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.sink import (
    BadSink,
    Capabilities,
    CommitFailed,
    Guarantee,
    Outcome,
    OutcomeUnknown,
    Part,
    Prepared,
    QueryId,
    Seen,
    StagedEpoch,
    StagedPart,
    StagedSink,
    check_writable,
    local_folder,
)
from beadline.testing.suite.target import QUERY, epoch_id, part_id


@dataclass(frozen=True)
class FileOfRows(StagedSink):
    """Rows and ledger in one JSON file; not for two processes."""

    folder: Path
    key: str = "id"
    deleted: str = ""
    busy: bool = False

    @property
    def default_name(self) -> str:
        return "rows"

    @property
    def staging_folder(self) -> str:
        return str(self.folder / "staging")

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return Capabilities(Guarantee.EXACTLY_ONCE, "once", "rows", shared_disk=True)

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        return {"key": self.key, "deleted": self.deleted}

    def held(self) -> dict[str, Any]:
        path = self.folder / "rows.json"
        return json.loads(path.read_text()) if path.exists() else {"rows": []}

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        if self.busy:
            raise OutcomeUnknown("busy")
        held = self.held()
        seen = Seen(*held["seen"]) if "seen" in held else None
        if epoch.is_committed(seen):
            return Outcome.ALREADY_COMMITTED
        rows = [row for batch in epoch.batches() for row in batch.to_pylist()]
        stored = {"rows": held["rows"] + rows, "seen": (QUERY.incarnation, epoch.id.number)}
        (self.folder / "rows.json").write_text(json.dumps(stored))
        return Outcome.COMMITTED

    def after_commit(self, epoch: StagedEpoch) -> None:
        there = [Path(part.committable.file.removeprefix("file:")) for part in epoch.parts]
        with (self.folder / "after").open("a") as file:
            file.write(f"{epoch.id.number} {all(path.exists() for path in there)}\n")

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        return None


def prepared(sink: StagedSink, epoch: int = 0) -> list[Prepared[StagedPart]]:
    """Two parts of two rows."""
    parts = []
    for partition in range(2):
        id_ = part_id(epoch, partition)
        batches = pa.table({"id": [2 * partition, 2 * partition + 1]}).to_batches()
        made = sink.prepare(iter(batches), Part(id_))
        assert made is not None
        parts.append(Prepared(id_, made.rows, made))
    return parts


def outcomes(sink: StagedSink, parts: list[Prepared[StagedPart]]) -> set[Outcome]:
    return set(sink.commit(epoch_id(0), parts).outcomes.values())


def staged(sink: StagedSink) -> int:
    return len(list(Path(sink.staging_folder).glob("beadline~*")))


def test_parts_are_written_in_their_order_and_discarded_last(tmp_path: Path) -> None:
    sink = FileOfRows(tmp_path)
    parts = prepared(sink)
    assert outcomes(sink, parts[::-1]) == {Outcome.COMMITTED}
    assert [row["id"] for row in sink.held()["rows"]] == [0, 1, 2, 3]
    assert staged(sink) == 0
    assert outcomes(sink, parts) == {Outcome.ALREADY_COMMITTED}
    assert (tmp_path / "after").read_text() == "0 True\n0 False\n", "before they are discarded"


def test_a_damaged_part_makes_all_of_the_epoch_lost_and_discards_none(tmp_path: Path) -> None:
    sink = FileOfRows(tmp_path)
    parts = prepared(sink)
    Path(parts[1].committable.file.removeprefix("file:")).unlink()
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.LOST}
    assert "is gone" in result.detail
    assert (staged(sink), sink.held()) == (1, {"rows": []})
    assert not (tmp_path / "after").exists()


def test_an_unknown_outcome_keeps_the_parts(tmp_path: Path) -> None:
    sink = FileOfRows(tmp_path, busy=True)
    parts = prepared(sink)
    assert outcomes(sink, parts) == {Outcome.UNKNOWN}
    assert outcomes(replace(sink, busy=False), parts) == {Outcome.COMMITTED}


class Mumbling(FileOfRows):
    """Answers with what is no answer."""

    answer: Any = None

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        answer: Outcome = self.answer
        return answer


@pytest.mark.parametrize("answer", [Outcome.UNKNOWN, Outcome.LOST, None, True])
def test_an_answer_that_is_none_discards_nothing(answer: Any, tmp_path: Path) -> None:
    """The parts are all that there is of the epoch; it is neither committed nor lost."""
    sink = type("One", (Mumbling,), {"answer": answer})(tmp_path)
    parts = prepared(sink)
    with pytest.raises(CommitFailed, match="write_epoch returned"):
        sink.commit(epoch_id(0), parts)
    assert staged(sink) == 2


def test_an_epoch_is_not_written_under_other_settings_than_it_was_staged_under(
    tmp_path: Path,
) -> None:
    sink = FileOfRows(tmp_path)
    parts = prepared(sink)
    for changed, said in (
        (replace(sink, key="other"), "key was 'id' and is 'other'"),
        (replace(sink, deleted="gone"), "deleted was '' and is 'gone'"),
    ):
        with pytest.raises(CommitFailed, match=rf"sink 'under-test'.*{said}.*earlier settings"):
            outcomes(changed, parts)
    assert outcomes(sink, parts) == {Outcome.COMMITTED}


class Newer(FileOfRows):
    """The same sink after an upgrade, which brought a setting."""

    new: Any = None

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        return {**super().staged_settings(schema), "new": self.new}


class Using(Newer):
    """And it is used."""

    new = "f:new"


class Older(FileOfRows):
    """The same sink before it kept any."""

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        return {}


def test_a_setting_that_an_upgrade_brought_counts_only_if_it_is_set(tmp_path: Path) -> None:
    parts = prepared(FileOfRows(tmp_path))
    with pytest.raises(CommitFailed, match="new was None and is 'f:new'"):
        outcomes(Using(tmp_path), parts)
    assert outcomes(Newer(tmp_path), parts) == {Outcome.COMMITTED}


def test_a_part_without_settings_is_written(tmp_path: Path) -> None:
    assert outcomes(Using(tmp_path), prepared(Older(tmp_path))) == {Outcome.COMMITTED}


def test_a_staging_folder_is_local_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_folder("staging", "a/b") == local_folder("staging", f"file:{tmp_path}/a/b")
    for wrong in ("", "hdfs://there/staging"):
        with pytest.raises(BadSink, match=r"staging=.* is not a local folder"):
            local_folder("staging", wrong)
    check_writable("staging", str(tmp_path / "a" / "b"), "the target")
    assert not (tmp_path / "a").exists(), "nothing is made"
    (tmp_path / "a").write_text("a file")
    with pytest.raises(BadSink, match=r"the target: no files can be made in staging="):
        check_writable("staging", str(tmp_path / "a" / "b"), "the target")
