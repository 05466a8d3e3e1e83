"""The kept list of mistakes stays alive: each can still be made, and its tests are there.

Whether the tests see them is asked by ``make mutants``, which takes minutes.
"""

from __future__ import annotations

import pytest

from tests.mutants import ROOT, Mutant, catalogue
from tests.mutants.__main__ import (
    CAUGHT,
    FAILED,
    MISSED,
    PASSED,
    TIMED_OUT,
    TOO_LONG,
    counted,
    exit_code,
    judged,
)

MUTANTS = catalogue()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.why}")
def test_a_mutant_can_be_made_and_its_tests_are_there(mutant: Mutant) -> None:
    code = (ROOT / mutant.path).read_text("utf-8")
    made = mutant.made_in(code)
    assert made != code
    compile(made, mutant.path, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text("utf-8")
        star = "from beadline.testing.suite import *" in text
        assert not name or star or f"def {name}(" in text, f"{file} has no {name}"


def test_there_are_enough_and_none_twice() -> None:
    assert len(MUTANTS) >= 60
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.why for mutant in MUTANTS}) == len(MUTANTS)


def test_a_place_that_is_not_beyond_doubt_is_refused() -> None:
    mutant = Mutant("x", "ids.py", "a = 1", "a = 2", ())
    for code in ("b = 1", "a = 1\na = 1"):
        with pytest.raises(LookupError, match="times, not once"):
            mutant.made_in(code)


@pytest.mark.parametrize(
    ("ended", "what"),
    [(FAILED, CAUGHT), (PASSED, MISSED), (TOO_LONG, TIMED_OUT), (2, MISSED), (5, MISSED)],
)
def test_only_a_test_that_fails_has_caught_a_mutant(ended: int, what: str) -> None:
    assert judged(ended)[0] == what


def test_what_timed_out_is_counted_apart() -> None:
    found = [CAUGHT, TIMED_OUT, CAUGHT, MISSED]
    assert counted(found) == {"mutants": 4, "caught": 2, "timed_out": 1, "missed": 1}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], 0),
        ([CAUGHT, CAUGHT], 0),
        ([CAUGHT, TIMED_OUT], 1),
        ([CAUGHT, MISSED], 1),
    ],
)
def test_what_no_assertion_has_seen_fails_the_run(found: list[str], code: int) -> None:
    assert exit_code(counted(found)) == code
