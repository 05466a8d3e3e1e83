"""The journal of push sources: durable before offered, torn ends cut, no position used twice."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from beadline.errors import BadSetting
from beadline.sources import SocketReceiver
from beadline.sources.journal import log as _journal
from beadline.sources.journal.log import Journal, JournalProblem, read, segments


def values(folder: Path, start: int, end: int) -> list[bytes]:
    return [record.value for record in read(folder, start, end)]


def filled(folder: Path, *given: bytes, segment_bytes: int = 1 << 20) -> Journal:
    journal = Journal(folder, segment_bytes)
    for value in given:
        journal.append(value)
        journal.sync()
    return journal


def last(folder: Path) -> Path:
    return segments(folder)[-1].path


def test_what_is_synced_is_read_again_by_its_positions(tmp_path: Path) -> None:
    journal = filled(tmp_path, b"a", b"", "ß\r".encode())
    end = journal.durable
    journal.close()
    assert values(tmp_path, 0, end) == [b"a", b"", "ß\r".encode()]
    positions = [record.position for record in read(tmp_path, 0, end)]
    assert positions == sorted(set(positions))
    assert values(tmp_path, positions[1], end) == [b"", "ß\r".encode()]
    assert values(tmp_path, positions[1], positions[2]) == [b""]
    assert values(tmp_path, end, end) == []


def test_what_is_appended_is_not_offered_before_it_is_synced(tmp_path: Path) -> None:
    journal = filled(tmp_path, b"a")
    before = journal.durable
    journal.append(b"b")
    assert journal.durable == before
    assert journal.sync() == journal.durable > before


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    for value in (b"a", b"b", b"c"):
        journal = filled(tmp_path, value)
        end = journal.durable
        journal.close()
    assert values(tmp_path, 0, end) == [b"a", b"b", b"c"]


def test_written_but_not_synced_when_the_process_died(tmp_path: Path) -> None:
    """The disk has it, though nobody was told: it is kept."""
    journal = filled(tmp_path, b"a")
    journal.append(b"b")
    journal._write_out()
    again = _after_a_crash(journal)
    assert values(tmp_path, 0, again.durable) == [b"a", b"b"]


def _after_a_crash(journal: Journal) -> Journal:
    import os

    os.close(journal._lock)
    return Journal(journal.folder)


@pytest.mark.parametrize("torn", [1, 8, 15, 16, 17])
def test_a_torn_end_is_cut_and_its_positions_are_left_out(tmp_path: Path, torn: int) -> None:
    journal = filled(tmp_path, b"a", b"b")
    offered = journal.durable
    journal.append(b"torn")
    journal._write_out()
    with last(tmp_path).open("rb+") as file:
        file.truncate(offered + torn)
    again = _after_a_crash(journal)
    assert again.durable == offered + torn
    again.append(b"c")
    end = again.sync()
    assert values(tmp_path, 0, end) == [b"a", b"b", b"c"]
    assert values(tmp_path, offered, end) == [b"c"]
    assert values(tmp_path, 0, offered) == [b"a", b"b"]
    if torn > 1:
        with pytest.raises(JournalProblem, match="are gone"):
            values(tmp_path, offered + 1, end)


def test_a_damaged_record_is_named_and_not_passed_over(tmp_path: Path) -> None:
    journal = filled(tmp_path, b"first", b"second", b"third")
    end = journal.durable
    path = last(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalProblem, match=str(path)):
        values(tmp_path, 0, end)


def test_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    journal = filled(tmp_path, *[b"x" * 100] * 10, segment_bytes=300)
    end = journal.durable
    found = segments(tmp_path)
    assert len(found) > 3
    assert len(values(tmp_path, 0, end)) == 10
    found[1].path.unlink()
    with pytest.raises(JournalProblem, match="are gone"):
        values(tmp_path, 0, end)


def test_what_is_done_with_is_forgotten_by_whole_segments(tmp_path: Path) -> None:
    journal = filled(tmp_path, *[b"x" * 100] * 10, segment_bytes=300)
    end = journal.durable
    third = segments(tmp_path)[2].first
    journal.forget(third + 1)
    assert segments(tmp_path)[0].first == third
    assert values(tmp_path, third, end)
    journal.forget(end * 2)
    assert len(segments(tmp_path)) == 1
    journal.append(b"y")
    assert values(tmp_path, end, journal.sync()) == [b"y"]


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_journal, "LOCK_TIMEOUT_S", 0.2)
    first = filled(tmp_path, b"a")
    with pytest.raises(JournalProblem, match="another process"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_a_value_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_journal, "VALUE_BYTES_MAX", 10)
    journal = filled(tmp_path, b"a")
    with pytest.raises(JournalProblem, match="too large"):
        journal.append(b"x" * 11)
    assert values(tmp_path, 0, journal.sync()) == [b"a"]


@pytest.mark.parametrize(("host", "port"), [("", 9), ("h", 0), ("h", 70_000)])
def test_an_address_that_is_none(host: str, port: int) -> None:
    with pytest.raises(BadSetting, match="a host and a port"):
        SocketReceiver(host, port)


LIMITED = """
import resource, sys
import errno
import os
import subprocess
import sys
from pathlib import Path
from beadline.sources.journal import log as _journal
from beadline.sources.journal.log import Journal, JournalProblem

folder, size, often, _journal.BUFFER_BYTES_MAX = Path(sys.argv[1]), *map(int, sys.argv[2:])
journal = Journal(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
kept, waiting, failed = [], [], 0

def sync():
    global waiting, failed
    before = journal.durable
    try:
        journal.sync()
        kept.extend(waiting)
    except (OSError, JournalProblem):
        failed += 1
        assert journal.durable == before
    waiting = []

def append(number, size):
    global failed
    try:
        journal.append(b"%d " % number + b"x" * size)
        waiting.append(number)
    except OSError:
        failed += 1

for number in range(70):
    append(number, size)
    if number % often == often - 1:
        sync()
sync()
assert failed, "the limit was not met"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sync()
for number in range(70, 140):
    append(number, size)
sync()
assert kept[-70:] == list(range(70, 140)), kept
print(journal.durable, *kept)
"""


@pytest.mark.parametrize("buffer", [1, 20_000, 16 << 20])
@pytest.mark.parametrize("often", [1, 7, 70])
@pytest.mark.parametrize("size", [9_000, 140_000])
def test_a_full_disk_loses_nothing_that_was_acknowledged(
    tmp_path: Path, size: int, often: int, buffer: int
) -> None:
    """A limit on the size of files stands in for the disk: some bytes are written, then none."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(size), str(often), str(buffer)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    end, *kept = map(int, child.stdout.split())
    assert [int(value.split()[0]) for value in values(tmp_path, 0, end)] == kept
    again = Journal(tmp_path)
    again.append(b"-1")
    assert [int(value.split()[0]) for value in values(tmp_path, 0, again.sync())] == [*kept, -1]


def test_an_error_of_append_is_raised_again_by_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is acknowledged by sync must not include what the failed append took with it."""
    journal = filled(tmp_path, b"a")
    durable = journal.durable
    journal.append(b"taken")
    monkeypatch.setattr(_journal, "BUFFER_BYTES_MAX", 0)
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(b"refused")
    with pytest.raises(JournalProblem, match="Do not acknowledge"):
        journal.sync()
    assert journal.durable == durable
    journal.append(b"b")
    assert values(tmp_path, 0, journal.sync()) == [b"a", b"b"]
    assert journal.problem is None


def test_after_a_failed_fsync_a_new_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second fsync of the same file may say yes to pages that the first one gave up."""
    journal = filled(tmp_path, b"a")
    before = last(tmp_path)
    size = before.stat().st_size
    journal.append(b"lost")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            journal.sync()
        assert journal.durable == size
        journal.append(b"lost too")
        with pytest.raises(OSError, match="No space"):
            journal.sync()
    journal.append(b"b")
    end = journal.sync()
    assert last(tmp_path) != before
    assert before.stat().st_size == size
    assert values(tmp_path, 0, end) == [b"a", b"b"]
    journal.close()
    assert values(tmp_path, 0, Journal(tmp_path).durable) == [b"a", b"b"]


def test_nothing_is_appended_to_a_closed_journal(tmp_path: Path) -> None:
    journal = filled(tmp_path, b"a")
    journal.close()
    with pytest.raises(JournalProblem, match="closed"):
        journal.append(b"b")


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")
