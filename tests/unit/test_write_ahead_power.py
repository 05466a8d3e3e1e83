"""What a receiver has taken is on the disk before the next batch goes out."""

from __future__ import annotations

from pathlib import Path

from beadline.points import hooked
from beadline.sink import Outcome
from beadline.sinks import WriteAheadSink
from beadline.testing.suite.durable import Disk, watched
from tests.unit.write_ahead_receivers import FileReceiver, commit, prepare, rows


def test_progress_survives_a_power_cut(tmp_path: Path) -> None:
    """Else rows that a receiver without ids has taken would go out again, batches of them."""
    receiver = FileReceiver(str(tmp_path / "received"), honours_ids=False)
    sink = WriteAheadSink(receiver, tmp_path / "wal", batch_rows=2)
    parts = prepare(sink, 0, rows(1, 2, 3, 4), rows(5, 6))
    disk = Disk(volatile=("*.lock", "received"))
    problems: list[list[str]] = []

    def look(point: str) -> None:
        if point == "ledger.after":
            problems.append(disk.problems())

    with watched(disk), hooked(look):
        assert commit(sink, 0, parts) == {Outcome.COMMITTED}
    assert problems == [[]] * 4, "three batches, and the ledger itself"
