"""Why a row is refused: whole in the dead-letter record, without its values in an error."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Part, Reason
from beadline.sinks.mysql.loading import Misfit
from beadline.sinks.mysql.problems import without_values
from beadline.sinks.postgres.problems import why_refused
from beadline.spark import refusals
from beadline.spark.refusals import Refusals, RefusedAgain, keeping
from beadline.testing.suite.target import part_id

ROWS = pa.RecordBatch.from_pydict({"x": ["card-4111"]})
QUOTED = Reason("invalid value 'card-4111'", "invalid value (not shown)")


@pytest.mark.parametrize("refusing", [None, RefusedAgain])
def test_an_error_holds_no_value_of_a_row(refusing: type[Refusals] | None) -> None:
    part, _ = keeping(Part(part_id(0)), refusing)
    with pytest.raises(RowsRefused, match=r"invalid value \(not shown\)") as caught:
        part.refuse(ROWS, pickle.loads(pickle.dumps(QUOTED)))
    assert "4111" not in str(caught.value)


def test_nor_does_the_error_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSED_BYTES_MAX", 1)
    part, _ = keeping(Part(part_id(0)), Refusals)
    with pytest.raises(RowsRefused, match=r"invalid value \(not shown\)"):
        part.refuse(ROWS, QUOTED)


def test_a_dead_letter_record_holds_it_whole() -> None:
    part, found = keeping(Part(part_id(0)), Refusals)
    part.refuse(ROWS, QUOTED)
    assert "invalid value 'card-4111'" in (found.to_text() or "")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Incorrect integer value: 'it's 4111' for column `d`.`t`.`n` at row 1",
            "Incorrect integer value: (not shown) for column `d`.`t`.`n` at row 1",
        ),
        (
            "BIGINT UNSIGNED value is out of range in '(4111 - 9)'",
            "BIGINT UNSIGNED value is out of range in (not shown)",
        ),
        (
            "Invalid utf8mb4 character string: '4111\\xFF'",
            "Invalid utf8mb4 character string: (not shown)",
        ),
        (
            "Duplicate entry '4111-\n9' for key 'PRIMARY'",
            "Duplicate entry (not shown) for key 'PRIMARY'",
        ),
        ("Column 'n' cannot be null", "Column 'n' cannot be null"),
    ],
)
def test_what_mysql_says(said: str, shown: str) -> None:
    assert without_values(said) == shown
    misfit = Misfit(said, "Data truncated for column 'v' at row 2")
    assert misfit.shown == f"{shown}; Data truncated for column 'v' at row 2"
    assert str(misfit).startswith(said)


class ServerError(Exception):
    """As ADBC raises what PostgreSQL says."""

    def __init__(self, sqlstate: str, said: str) -> None:
        super().__init__(said)
        self.sqlstate = sqlstate
        context = b"COPY orders, line 1, column id"
        self.details = [("PG_DIAG_MESSAGE_PRIMARY", said.encode()), ("PG_DIAG_CONTEXT", context)]


@pytest.mark.parametrize(
    ("state", "said", "shown"),
    [
        (
            "22P02",
            'invalid input syntax for type uuid: "card-"4111"\n9"',
            "invalid input syntax for type uuid: (not shown)",
        ),
        ("22001", "value too long for type character varying(3)", None),
        ("23514", 'new row for relation "orders" violates check constraint "c"', None),
    ],
)
def test_what_postgresql_says(state: str, said: str, shown: str | None) -> None:
    why = why_refused(ServerError(state, said), "dbname=orders")
    assert why == f"column 'id': {said}"
    assert why.shown == f"column 'id': {shown or said}"
