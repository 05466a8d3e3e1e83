"""The journal of push sources: durable before offered, torn ends cut, no position used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.errors import BadSetting
from beadline.sources import SocketReceiver, _journal
from beadline.sources._journal import Journal, JournalProblem, read, segments


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
    journal._file.flush()
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
    journal._file.flush()
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
