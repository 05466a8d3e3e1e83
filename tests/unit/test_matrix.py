"""The matrix on figures alone: what counts as held, and what the page says of it."""

from __future__ import annotations

import pytest

from beadline.sink import Guarantee
from tests.harness.matrix.cells import Cell, Result, count, every_cell
from tests.harness.matrix.table import for_docs, for_terminal

EXACTLY = Guarantee.EXACTLY_ONCE
AT_LEAST = Guarantee.AT_LEAST_ONCE
AT_MOST = Guarantee.AT_MOST_ONCE


def result(
    promised: Guarantee, lost: int = 0, twice: int = 0, sink: str = "sqlite", problem: str = ""
) -> Result:
    cell = Cell("files", sink, "exactly_once")
    return Result(cell, promised, 7, ("decide.after",), 100, lost, twice, 1.5, problem=problem)


def test_three_words_name_a_cell() -> None:
    assert len(every_cell()) == len(set(every_cell())) == 80
    assert all(Cell.parse(str(cell)) == cell for cell in every_cell())
    for wrong in ("files", "files/sqlite", "files/nowhere/exactly_once"):
        with pytest.raises(ValueError, match="is not source/sink/function"):
            Cell.parse(wrong)


def test_counting() -> None:
    assert count([0, 1, 2], range(3)) == (0, 0)
    assert count([0, 2, 2, 2], range(4)) == (2, 2)
    assert count([0, 9], range(1)) == (0, 1)  # a stranger


@pytest.mark.parametrize(
    ("promised", "lost", "twice", "observed", "held"),
    [
        (EXACTLY, 0, 0, "exactly-once", True),
        (EXACTLY, 0, 1, "at-least-once", False),
        (EXACTLY, 1, 0, "at-most-once", False),
        (AT_LEAST, 0, 5, "at-least-once", True),
        (AT_LEAST, 0, 0, "exactly-once", True),
        (AT_LEAST, 1, 0, "at-most-once", False),
        (AT_MOST, 1, 0, "at-most-once", True),
        (AT_MOST, 0, 0, "exactly-once", True),
        (AT_MOST, 0, 1, "at-least-once", False),
        (AT_MOST, 1, 1, "lost and twice", False),
    ],
)
def test_what_is_held(
    promised: Guarantee, lost: int, twice: int, observed: str, held: bool
) -> None:
    found = result(promised, lost, twice)
    assert (found.observed, found.held) == (observed, held)


def test_a_cell_that_fails_is_broken() -> None:
    found = result(EXACTLY, problem="TimeoutError: nothing happened")
    assert (found.observed, found.held, found.note) == ("failed", False, found.problem)


def test_no_duplicate_where_one_was_allowed_says_how_it_was_tried() -> None:
    assert "tried: killed after rows were shown" in result(AT_LEAST).note
    assert "over themselves" in result(AT_LEAST, sink="hbase").note
    assert result(AT_LEAST, twice=1).note == result(EXACTLY).note == ""


def test_the_page_shows_every_cell_and_what_was_not_run() -> None:
    page = for_docs([result(EXACTLY), result(AT_LEAST, lost=1, sink="redis")], 7)
    assert "2 cells, 1 held, 1 broken" in page
    assert "**broken** at-least-once → at-most-once" in page
    assert "not run" in page
    assert "| files/sqlite/exactly_once | exactly-once | exactly-once | 100 | 0 | 0 |" in page
    assert for_terminal([result(EXACTLY)]).row_count == 1
