"""Staging: whole files under a part's id, damage noticed, leftovers found, strangers left alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink
from beadline.ids import PartId, QueryId
from beadline.points import hooked
from beadline.sink import Part, Prepared, StagedPart, Staging, folders_in

QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")
ID = PartId("orders", "a" * 32, "warehouse", 1, 7, 0, 0)


class Crash(BaseException):
    pass


def batch(*numbers: int) -> Any:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(f"file:{tmp_path}/deep/er")


def folder_of(staging: Staging) -> Path:
    return Path(staging.folder.removeprefix("file:"))


def names(staging: Staging) -> list[str]:
    return sorted(path.name for path in folder_of(staging).glob("*"))


def stage(staging: Staging, *batches: Any, id_: PartId = ID) -> Prepared[StagedPart]:
    staged = staging.write(iter(batches), Part(id_))
    assert staged is not None
    return Prepared(id_, staged.rows, staged)


def test_what_is_staged_can_be_read_again(staging: Staging) -> None:
    part = stage(staging, batch(1, 2), batch(), batch(3))
    assert names(staging) == [str(ID)]
    assert part.committable.file == f"{staging.folder}/{ID}"
    assert part.committable.size_bytes == (folder_of(staging) / str(ID)).stat().st_size
    assert StagedPart.from_json(part.committable.to_json()) == part.committable
    assert staging.damage([part]) == {}
    found = [row["n"] for got in staging.read(part.committable) for row in got.to_pylist()]
    assert found == [1, 2, 3]
    assert part.rows == 3


def test_version_1_stays_readable() -> None:
    stored = {"version": 1, "file": "file:/s/p", "rows": 3, "size_bytes": 512, "sha256": "ab"}
    assert StagedPart.from_json(stored) == StagedPart("file:/s/p", 3, 512, "ab")
    assert StagedPart("file:/s/p", 3, 512, "ab").to_json() == stored


@pytest.mark.parametrize("batches", [(), (batch(),), (batch(), batch())])
def test_no_rows_no_file_no_folder(staging: Staging, batches: tuple[Any, ...]) -> None:
    assert staging.write(iter(batches), Part(ID)) is None
    assert not folder_of(staging).exists()


def test_rows_are_written_as_they_come(staging: Staging) -> None:
    """Not collected first: by the second batch the file is there."""
    seen = []

    def rows() -> Iterator[Any]:
        yield batch(1)
        yield batch(2)
        seen.extend(names(staging))

    staging.write(rows(), Part(ID))
    assert len(seen) == 1
    assert seen[0].startswith(f"{ID}.tmp-")


def test_the_final_name_comes_after_the_fsync(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        act: Callable[..., Any] = getattr(os, name)

        def call(*args: Any) -> Any:
            acts.append(name)
            return act(*args)

        return call

    folder_of(staging).mkdir(parents=True)
    for name in ("fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name))
    with hooked(acts.append):
        stage(staging, batch(1))
    assert acts == ["staging.written", "fsync", "rename", "fsync"]


def test_damage_is_noticed(staging: Staging) -> None:
    part = stage(staging, batch(*range(100)))
    path = folder_of(staging) / str(ID)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "bytes, not" in staging.damage([part])[ID]
    path.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    assert "other content" in staging.damage([part])[ID]
    path.unlink()
    assert "is gone" in staging.damage([part])[ID]


def test_a_file_that_goes_while_it_is_looked_at_is_gone(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver may finish the epoch, and throw its files away, at any moment."""
    prepared = stage(staging, batch(1))
    real = os.path.getsize

    def deleted_just_after(path: str) -> int:
        size = real(path)
        os.unlink(path)
        return size

    monkeypatch.setattr(os.path, "getsize", deleted_just_after)
    assert "is gone" in staging.damage([prepared])[prepared.id]


def test_a_crash_leaves_a_file_that_is_in_doubt(staging: Staging) -> None:
    def crash(name: str) -> None:
        raise Crash(name)

    with hooked(crash), pytest.raises(Crash, match=r"staging\.written"):
        stage(staging, batch(1))
    (left,) = names(staging)
    assert left != str(ID)
    (doubt,) = staging.in_doubt(QUERY)
    assert doubt.id == ID
    staging.discard([doubt])
    assert names(staging) == []


def test_an_error_leaves_nothing(staging: Staging) -> None:
    def rows() -> Iterator[Any]:
        yield batch(1)
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="source is gone"):
        staging.write(rows(), Part(ID))
    assert names(staging) == []


def test_one_id_is_staged_once(staging: Staging) -> None:
    first = stage(staging, batch(1))
    with pytest.raises(FileExistsError, match="already staged"):
        stage(staging, batch(2))
    assert names(staging) == [str(ID)]
    assert staging.damage([first]) == {}


def test_foreign_names_are_left_alone(staging: Staging) -> None:
    part = stage(staging, batch(1))
    other = PartId("other", "b" * 32, "warehouse", 1, 7, 0, 0)
    strangers = ["notes.txt", str(other), f"{other}.tmp-12", "beadline~orders~x", f"x{ID}"]
    for name in strangers:
        (folder_of(staging) / name).touch()
    assert [doubt.id for doubt in staging.in_doubt(QUERY)] == [ID]
    staging.discard([part])
    assert names(staging) == sorted(strangers)


def test_nothing_is_in_doubt_where_nothing_is(staging: Staging) -> None:
    assert list(staging.in_doubt(QUERY)) == []
    staging.discard([Prepared(ID, 1, StagedPart("file:/nowhere", 1, 1, ""))])


def test_a_folder_elsewhere_is_refused() -> None:
    with pytest.raises(BadSink, match="local disk"):
        Staging("hdfs://host/staging")


def test_what_a_sink_that_is_gone_left_beside_it_is_found(tmp_path: Path) -> None:
    """Rule 27: the folder of another table has nobody else who would look into it."""
    here, gone = Staging(f"file:{tmp_path}/hbase-a"), Staging(f"file:{tmp_path}/hbase-b")
    stage(here, batch(1))
    orphan = replace(ID, sink="gone")
    stage(gone, batch(2), id_=orphan)
    (tmp_path / "hbase-c").write_text("not a folder")
    (tmp_path / "other").mkdir()
    beside = folders_in(f"file:{tmp_path}", "hbase-")
    assert beside == [here.folder, gone.folder]
    found = {part.id: part for part in here.in_doubt(QUERY, beside)}
    assert set(found) == {ID, orphan}
    here.discard([found[orphan]])
    assert (len(names(here)), names(gone)) == (1, [])
    assert folders_in(f"file:{tmp_path}/nowhere") == []


@pytest.mark.parametrize("hidden", ["", "hbase-b"])
def test_another_users_folder_stops_no_sweep(
    tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may not be listed is left to its user; our own folder must be seen, though."""
    here = Staging(f"file:{tmp_path}/hbase-a")
    stage(here, batch(1))
    (tmp_path / "hbase-b").mkdir()
    listed = os.listdir

    def refuse(path: str) -> list[str]:
        if Path(path) == tmp_path / hidden:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    beside = folders_in(f"file:{tmp_path}", "hbase-")
    assert [part.id for part in here.in_doubt(QUERY, beside)] == [ID]
    hidden = "hbase-a"
    with pytest.raises(PermissionError):
        list(here.in_doubt(QUERY, [here.folder]))


def test_what_is_below_each_folder(tmp_path: Path) -> None:
    (tmp_path / "shop" / "parts").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    assert folders_in(f"file:{tmp_path}", below="parts") == [f"file:{tmp_path}/shop/parts"]
