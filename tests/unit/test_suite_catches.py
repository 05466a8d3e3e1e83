"""The suite itself is tested: each broken sink fails, and every case fails some sink.

A case that no broken sink can fail would prove nothing of the sinks that pass it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import MemorySink, SqliteSink
from beadline.testing.suite import CASES, SinkHarness
from examples.two_phase_folder import FolderSink
from tests.unit import broken_sinks as broken
from tests.unit.test_suite_memory import MemoryHarness
from tests.unit.test_suite_sqlite import AppendHarness
from tests.unit.test_suite_two_phase import FolderHarness

# The sink, and the cases that must find it out; others may as well.
FOUND_BY: dict[type[AnySink], tuple[str, ...]] = {
    broken.VisibleAtPrepare: ("test_prepared_is_invisible",),
    broken.AckBeforeFlush: ("test_another_process_can_commit",),
    broken.SaysDoneDoesNothing: (
        "test_commit_shows_each_row_once",
        "test_it_remembers_what_it_saw",
    ),
    broken.FirstPartOnly: ("test_several_parts_make_one_epoch",),
    broken.LosesARow: ("test_the_rows_that_it_holds_are_counted",),
    broken.LooksAtTextTooLate: ("test_what_prepare_takes_commit_can_write",),
    broken.ForgetsAbort: (
        "test_abort_removes_what_was_prepared",
        "test_abort_again_changes_nothing",
    ),
    broken.AbortsEveryAttempt: ("test_abort_of_one_attempt_leaves_the_other",),
    broken.FindsNothing: (
        "test_in_doubt_is_what_is_prepared_and_not_committed",
        "test_losing_attempts_can_be_swept_after_the_commit",
    ),
    broken.FindsStrangers: ("test_in_doubt_skips_strangers",),
    broken.MissesHalfWritten: (
        "test_a_crash_in_prepare_is_swept_and_tried_again",
        "test_a_crash_while_rows_come_is_swept",
    ),
    broken.LeavesStray: ("test_a_part_that_is_swept_while_it_is_written_leaves_nothing",),
    broken.SwallowsErrors: ("test_a_task_that_fails_leaves_nothing_after_the_sweep",),
    broken.EmptyIsSomething: ("test_a_part_without_rows_is_none",),
    broken.CheckLeavesSomething: ("test_check_can_be_repeated_and_leaves_nothing",),
    broken.RemembersNothing: ("test_it_remembers_what_it_saw",),
    broken.OneLedgerForAll: ("test_two_queries_share_a_target",),
    broken.OneRowPerTable: ("test_two_sinks_of_a_query_share_a_target",),
    broken.AnswersForTheQuery: ("test_two_sinks_of_a_query_share_a_target",),
    broken.NullIsEmpty: ("test_odd_values_survive",),
    broken.NeverKeepsCount: ("test_commit_again_changes_nothing",),
    broken.LateTakesEffect: (
        "test_a_late_commit_has_no_effect",
        "test_a_late_commit_after_a_crash_has_no_effect",
    ),
    broken.TwoSteps: (
        "test_a_crash_in_commit_is_finished_by_the_next_commit",
        "test_a_commit_that_pauses_while_others_go_on_has_no_effect",
        "test_two_commits_at_once_show_each_row_once",
    ),
    broken.ShowsPartByPart: ("test_an_atomic_epoch_shows_whole_or_not_at_all",),
    broken.ForgetsSharedDisk: ("test_check_can_be_repeated_and_leaves_nothing",),
    broken.OnlyItself: ("test_the_sink_travels",),
    broken.ShowsSecret: ("test_secrets_show_nowhere",),
    broken.NotJson: ("test_committables_are_json_and_small_print",),
    broken.MissingIsEmpty: ("test_a_part_that_is_gone_is_not_committed",),
    broken.ThrowsTheRestAway: ("test_a_part_that_is_gone_is_not_committed",),
    broken.NoAnswerIsLost: ("test_a_target_that_cannot_be_reached_has_lost_nothing",),
    broken.NoAnswerIsDone: ("test_a_target_that_cannot_be_reached_has_lost_nothing",),
    broken.IgnoresPrevious: ("test_a_target_that_was_restored_to_an_older_state_takes_nothing",),
    broken.LooksTooLate: ("test_a_target_that_was_restored_to_an_older_state_takes_nothing",),
    broken.ForgetsRemembers: ("test_a_target_that_was_restored_to_an_older_state_takes_nothing",),
    broken.CastsSilently: ("test_a_target_that_was_altered_changes_no_value",),
    broken.Unsynced: ("test_what_is_acknowledged_survives_a_power_cut",),
    broken.UnsyncedContent: ("test_what_is_acknowledged_survives_a_power_cut",),
    broken.UnsyncedName: ("test_what_is_acknowledged_survives_a_power_cut",),
    broken.UnsyncedCommit: ("test_what_is_acknowledged_survives_a_power_cut",),
    broken.WithoutPoints: (
        "test_a_crash_in_commit_is_finished_by_the_next_commit",
        "test_a_crash_in_prepare_is_swept_and_tried_again",
        "test_a_late_commit_after_a_crash_has_no_effect",
        "test_a_commit_that_pauses_while_others_go_on_has_no_effect",
    ),
    broken.FindsItsOwnName: ("test_in_doubt_finds_parts_of_any_sink_name",),
    broken.AbortsEveryName: ("test_in_doubt_finds_parts_of_any_sink_name",),
    broken.TakesAnything: ("test_what_prepare_takes_commit_can_write",),
    broken.DropsWhatItCannotWrite: ("test_what_prepare_takes_commit_can_write",),
}


class BrokenMemory(MemoryHarness):
    secrets = ("hunter2",)

    def __init__(self, kind: type[MemorySink]) -> None:
        self.kind = kind

    def fresh(self, schema: pa.Schema) -> AnySink:
        made = super().fresh(schema)
        assert isinstance(made, MemorySink)
        return self.kind(made.name)


class BrokenSqlite(AppendHarness):
    def __init__(self, kind: type[SqliteSink], folder: Path) -> None:
        super().__init__(folder)
        self.kind = kind

    def fresh(self, schema: pa.Schema) -> AnySink:
        made = super().fresh(schema)
        assert isinstance(made, SqliteSink)
        return self.kind(made.path, made.table)


class BrokenFolder(FolderHarness):
    def __init__(self, kind: type[FolderSink], folder: Path) -> None:
        super().__init__(folder)
        self.kind = kind

    def fresh(self, schema: pa.Schema) -> AnySink:
        return self.kind(str(next(self.names)))


class Silent(AppendHarness):
    """Says nothing of a target that cannot be reached."""

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        found = SinkHarness.unreachable(self, sink)
        assert found is not None
        return found


def test_a_harness_that_cannot_cut_its_target_off_says_so(tmp_path: Path) -> None:
    case = CASES["test_a_target_that_cannot_be_reached_has_lost_nothing"]
    with pytest.raises(AssertionError, match=r"Silent has no unreachable\(sink\)"):
        case(Silent(tmp_path))


def test_a_suite_that_reached_no_crash_point_says_so(tmp_path: Path) -> None:
    case = CASES["test_a_crash_in_commit_is_finished_by_the_next_commit"]
    with pytest.raises(AssertionError, match="commit reached no crash point"):
        case(harness_of(broken.WithoutPoints, tmp_path))


def harness_of(kind: type[AnySink], folder: Path) -> SinkHarness:
    """The harness of the sink that this one is a broken copy of."""
    if issubclass(kind, SqliteSink):
        return BrokenSqlite(kind, folder)
    if issubclass(kind, FolderSink):
        return BrokenFolder(kind, folder)
    assert issubclass(kind, MemorySink)
    return BrokenMemory(kind)


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind, cases in FOUND_BY.items() for case in cases]
)
def test_a_broken_sink_is_found(kind: type[AnySink], case: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        CASES[case](harness_of(kind, tmp_path))


def test_every_case_finds_a_broken_sink() -> None:
    assert {case for cases in FOUND_BY.values() for case in cases} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_promised_is_not_asked(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same sink that fails as exactly-once passes as what it is, and the reason is printed."""
    CASES[case](harness_of(broken.AtLeastOnce, tmp_path))
    if case in FOUND_BY[broken.NeverKeepsCount]:
        assert "the sink declares at-least-once" in capsys.readouterr().out
