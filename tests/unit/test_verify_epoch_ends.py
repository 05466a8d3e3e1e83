"""Epochs of the same number may hold other rows; ``beadline verify`` compares what ended alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from beadline.verify.compare import (
    CountedRows,
    EpochEnd,
    Reference,
    RunProgress,
    SeenRow,
    SinkContents,
    ViolationKind,
    epochs_by_end,
    moment,
    progress,
)
from beadline.verify.task import epoch_end


def note(checkpoint: Path, epoch: int, files: int, watermark: int = 0, at: int = 0) -> None:
    """Write an epoch's offsets as Spark does, up to this number of files."""
    offsets = checkpoint / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    metadata = f'{{"batchWatermarkMs":{watermark},"batchTimestampMs":{at},"conf":{{}}}}'
    (offsets / str(epoch)).write_text(f'v1\n{metadata}\n{{"logOffset":{files}}}')


def undisturbed(folder: Path, epochs: int = 5) -> dict[EpochEnd, int]:
    for epoch in range(epochs):
        note(folder, epoch, epoch, at=1)
    return epochs_by_end({epoch: epoch_end(folder, epoch) for epoch in range(epochs)})


def so_far(ends: dict[EpochEnd, int], checkpoint: Path, decided: int) -> RunProgress:
    return progress(ends, partial(epoch_end, checkpoint), decided)


def test_the_time_of_day_is_no_part_of_a_cut(tmp_path: Path) -> None:
    note(tmp_path / "one", 3, 3, at=1)
    note(tmp_path / "other", 3, 3, at=2)
    assert epoch_end(tmp_path / "one", 3) == epoch_end(tmp_path / "other", 3) is not None
    note(tmp_path / "other", 3, 3, watermark=1)
    assert epoch_end(tmp_path / "one", 3) != epoch_end(tmp_path / "other", 3)
    assert epoch_end(tmp_path / "one", 4) is None


def test_an_epoch_that_holds_two_of_the_undisturbed_run(tmp_path: Path) -> None:
    """Its driver died when the source had noted files, and Spark had not noted the epoch."""
    ends = undisturbed(tmp_path / "reference")
    run = tmp_path / "run"
    for epoch, files in enumerate([0, 1, 3, 4]):
        note(run, epoch, files)
    assert so_far(ends, run, -1) == RunProgress(-1, -1)
    assert so_far(ends, run, 0) == RunProgress(-1, 0)
    assert so_far(ends, run, 2) == RunProgress(1, 3, alike=False)
    assert so_far(ends, run, 3) == RunProgress(3, 4, alike=False)
    rows: list[SeenRow] = [(number,) for number in range(5)]
    reference = Reference("rows", {n: SinkContents(Counter(rows[: n + 1])) for n in range(5)})
    for shown in (rows[:2], rows[:3], rows[:4]):  # before, in the midst of and after its commit
        assert moment(reference, 1, Counter(shown), 3) == []
    assert moment(reference, 1, Counter(rows), 3) != []


def test_what_ended_nowhere_in_the_undisturbed_run_is_no_bound(tmp_path: Path) -> None:
    ends = undisturbed(tmp_path / "reference")
    run = tmp_path / "run"
    note(run, 0, 0)
    note(run, 1, 1, watermark=5)
    note(run, 2, 2)
    assert so_far(ends, run, 0) == RunProgress(-1, 0)
    assert so_far(ends, run, 1) == RunProgress(0, None, alike=False)
    assert so_far(ends, run, 2) == RunProgress(None, 2)
    reference = Reference(
        "rows", {n: SinkContents(Counter([(k,) for k in range(n + 1)])) for n in range(3)}
    )
    kinds = {
        (0, None): [ViolationKind.LOST, ViolationKind.DUPLICATED],
        (None, 2): [ViolationKind.DUPLICATED],
        (None, 0): [ViolationKind.DUPLICATED, ViolationKind.ABORTED],
    }
    shown: CountedRows = Counter([(1,), (1,)])
    for (settled, decided), wanted in kinds.items():
        assert [each.kind for each in moment(reference, settled, shown, decided)] == wanted
    table = replace(reference, grows=False, atomic=True)
    assert moment(table, 0, shown, None) == moment(table, None, shown, 2) == []
    assert moment(table, 0, shown, 2) != []


def test_epochs_of_a_job_with_state_that_were_cut_otherwise_are_not_compared() -> None:
    reference = Reference("rows", {}, by_state=True)
    assert reference.comparable(alike=True)
    assert not reference.comparable(alike=False)
    assert replace(reference, grows=False).comparable(alike=False)
    assert replace(reference, by_state=False).comparable(alike=False)


def test_what_is_not_offsets_is_no_cut(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for text in ("", "v1", "v1\nno json\n{}", "v1\n[]\n{}"):
        (tmp_path / "offsets" / "0").write_text(text)
        assert epoch_end(tmp_path, 0) is None


def test_two_epochs_with_the_same_end_cannot_be_distinguished(tmp_path: Path) -> None:
    note(tmp_path, 0, 0)
    note(tmp_path, 1, 1)
    note(tmp_path, 2, 1)
    assert list(epochs_by_end({n: epoch_end(tmp_path, n) for n in range(4)}).values()) == [0]
