"""A start that did not end, or that another process killed: nothing is known, or violated."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from beadline.sink import Guarantee
from beadline.verify.child import Child
from beadline.verify.faults import Fault
from beadline.verify.inject import _ended
from beadline.verify.report import FaultResult
from beadline.verify.rounds import TIMEOUT_MIN_S, Round
from beadline.verify.run import Options, Verifier, limit_of
from beadline.verify.source_range import RangeLimits
from beadline.verify.task import Inspection, Task
from beadline.verify.terminal import without_control_codes
from beadline.verify.watch import wait_until_stable
from tests.unit.test_verify_report import LOST

BAR = "[Stage 3:=====>          (5 + 2) / 8]"


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Child]:
    """A child that never ends by itself."""
    arguments = ["0", "--bind", "127.0.0.1"]
    child = Child("http.server", arguments, tmp_path / "child.log", tmp_path)
    yield child
    child.end()


def a_round(folder: Path, timeout_s: float) -> Round:
    found = Inspection("shop", Guarantee.EXACTLY_ONCE, (), (), (), stateful=False)
    return Round(folder, folder, Task("j", {}, "v", RangeLimits()), found, {}, timeout_s=timeout_s)


@pytest.mark.parametrize(("timeout_s", "settle_s"), [(33.0, 30.0), (240.0, 30.0), (1200.0, 50.0)])
def test_a_row_may_be_on_its_way_for_a_while(
    tmp_path: Path, timeout_s: float, settle_s: float
) -> None:
    """On a busy machine; what does not show by then is lost."""
    assert a_round(tmp_path, timeout_s).settle_s == settle_s


def test_a_start_that_does_not_end_is_no_violation(tmp_path: Path, endless: Child) -> None:
    made = a_round(tmp_path, 0.3)
    for _ in range(2):  # asked again, it is dead of our own hand: that is no violation either
        struck = _ended(made, endless, "decide.after/group", killed=False)
        assert struck.found == []
        assert "decide.after/group: a start did not end in 0 s" in struck.unclear
        assert "--timeout" in struck.unclear
    assert not endless.alive


def test_a_start_that_is_killed_from_outside_is_no_violation(
    tmp_path: Path, endless: Child
) -> None:
    os.kill(endless.pid, signal.SIGKILL)
    made = a_round(tmp_path, 60)
    struck = _ended(made, endless, "the undisturbed start", killed=False)
    assert struck.found == []
    assert "killed by something else" in struck.unclear
    assert _ended(made, endless, "decide.after", killed=True).unclear == ""


def test_a_start_that_fails_is_a_violation(tmp_path: Path) -> None:
    child = Child("ast", ["/nowhere"], tmp_path / "child.log", tmp_path)
    struck = _ended(a_round(tmp_path, 60), child, "decide.after", killed=False)
    assert struck.unclear == ""
    assert [str(each.kind) for each in struck.found] == ["did not recover"]


def test_limits_grow_with_the_minutes_and_by_the_flag() -> None:
    made = [
        Verifier(Options("j", 7, minutes=minutes, timeout_s=given))
        for minutes, given in ((1.0, None), (60.0, None), (60.0, 33.0))
    ]
    assert [each.timeout_s for each in made] == [240.0, 3600.0, 33.0]
    for each in made:
        each._tidy_up()
    assert Options("j", 7, timeout_s=33.0).words == ("--timeout", "33")


def test_what_comes_late_is_not_lost() -> None:
    looks = iter([[LOST], [LOST], []])
    assert wait_until_stable(lambda: next(looks), 60.0) == []
    assert wait_until_stable(lambda: [LOST], 0.0) == [LOST]


def test_complaints_are_readable(tmp_path: Path) -> None:
    text = f"{BAR}\r{BAR}{BAR}\r                    \r\x1b[1;31mno disk\x1b[0m\x07\n  at line 1\n"
    assert without_control_codes(text) == "no disk\n  at line 1"
    log = tmp_path / "child.log"
    child = Child("ast", ["--help"], log, tmp_path)
    child.wait(60)
    log.write_text("no disk\n" + f"{BAR}\r" * 100)  # no bar pushes out what was said before it
    assert child.complaint() == "no disk"


def test_a_fault_with_an_unknown_outcome_is_reported_so() -> None:
    result = FaultResult(Fault.parse("decide.after"), 1, seconds=3.0, unclear="who knows")
    assert result.verdict == "inconclusive"
    result.found.append(LOST)
    assert result.verdict == "VIOLATED"


@pytest.mark.parametrize(
    ("slowest_s", "given", "limit_s"),
    [
        (1.0, None, TIMEOUT_MIN_S),
        (300.0, None, 3000.0),
        (300.0, 20.0, 20.0),
        (1.0, 900.0, 900.0),
    ],
)
def test_limits_grow_with_the_undisturbed_run(
    slowest_s: float, given: float | None, limit_s: float
) -> None:
    """A start after a fault has more to do than one before; what is asked for counts."""
    assert limit_of(slowest_s, given) == limit_s
