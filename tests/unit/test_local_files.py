"""Local files against power loss: the order of system calls, which no kill can see."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beadline.files.local import LocalFiles, write_durably
from beadline.points import hooked
from beadline.testing.suite.durable import Disk, watched
from tests.unit.logs import decision, on_disk, opened

FILES = LocalFiles()
ACTS = ("fsync", "link", "replace", "rename", "unlink")


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The acts that matter, in their order; an fsync says of what."""
    found: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        act: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any) -> Any:
            word = name
            if name == "fsync":
                mode = os.fstat(arguments[0]).st_mode
                word += " folder" if stat.S_ISDIR(mode) else " file"
            found.append(word)
            return act(*arguments)

        return call

    for name in ACTS:
        monkeypatch.setattr(os, name, noted(name))
    return found


def test_a_record_is_on_the_disk_before_it_has_its_name_and_so_is_the_name(
    tmp_path: Path, acts: list[str]
) -> None:
    """Rule 2: an empty file under the final name would be a decision that nobody can read."""
    with hooked(acts.append):
        assert FILES.create_exclusive(f"file:{tmp_path}/record", b"content")
    assert acts == [
        "fsync file",
        "append.written",
        "link",
        "append.linked",
        "unlink",
        "fsync folder",
    ]


def test_what_is_synced_is_all_of_the_record(tmp_path: Path, disk: Disk) -> None:
    """Not what was there before Python's own buffer was flushed."""
    with watched(disk):
        write_durably(str(tmp_path / "record"), b"content")
    assert disk.problems() == [
        f"the name {tmp_path}/record: its folder was not synced after it was given"
    ]


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one(
    tmp_path: Path, acts: list[str]
) -> None:
    FILES.write(f"file:{tmp_path}/mark", b"1")
    assert acts == ["fsync file", "replace", "fsync folder"]


@pytest.mark.parametrize("there", ["", "a", "a/b", "a/b/c"])
def test_every_folder_that_is_made_is_named_durably(tmp_path: Path, there: str, disk: Disk) -> None:
    """A record is useless in a folder that a power cut takes away."""
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    with watched(disk):
        FILES.make_folder(f"file:{tmp_path}/a/b/c")
    assert (tmp_path / "a/b/c").is_dir()
    assert disk.problems() == []


@pytest.mark.parametrize("count", [1, 4, 5, 20])
def test_files_of_other_programs_are_synced_with_the_folders_that_name_them(
    tmp_path: Path, count: int, disk: Disk
) -> None:
    paths = [f"day={number % 2}/{number}" for number in range(count)]
    top = tmp_path / "out"
    with watched(disk):
        for path in paths:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_text("rows")
        assert len(disk.problems()) == 2 * count + len({path[:5] for path in paths}) + 1
        FILES.sync_files(f"file:{top}", paths)
        FILES.sync_folder(f"file:{tmp_path}")
    assert disk.problems() == []


def test_what_the_log_has_appended_survives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    """The whole way down, the log's own folder included."""
    with watched(disk):
        log = opened(on_disk(tmp_path / "checkpoint" / "beadline"))
        assert disk.problems() == []
        for _ in range(3):
            log.append(decision(log))
            assert disk.problems() == []


def test_a_record_that_was_read_back_is_synced_before_anybody_acts_on_it(
    tmp_path: Path, disk: Disk
) -> None:
    """The create failed after the link: ours by its nonce, and its name not yet on the disk."""
    store = on_disk(tmp_path)
    log = opened(store)

    class Interrupted(LocalFiles):
        def create_exclusive(self, uri: str, data: bytes) -> bool:
            def interrupt(point: str) -> None:
                if point == "append.linked":
                    raise OSError("interrupted")

            with hooked(interrupt):
                return super().create_exclusive(uri, data)

    store._files = Interrupted()
    with watched(disk):
        log.append(decision(log))
    assert disk.problems() == []


def test_a_rename_never_replaces_what_is_there(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    assert not FILES.rename(f"file:{tmp_path}/one", f"file:{tmp_path}/other")
    assert (tmp_path / "other").read_text() == "other"
    assert (tmp_path / "one").read_text() == "one"


def test_a_name_that_is_taken_stays_whose_it_is(tmp_path: Path) -> None:
    assert FILES.create_exclusive(f"file:{tmp_path}/slot", b"first")
    assert not FILES.create_exclusive(f"file:{tmp_path}/slot", b"second")
    assert os.listdir(tmp_path) == ["slot"]
    assert (tmp_path / "slot").read_bytes() == b"first"
