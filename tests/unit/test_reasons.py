"""Why a row is refused: whole in the dead-letter record, without its values in an error."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Part, Reason
from beadline.sinks.mysql.connection import MySqlAddress
from beadline.sinks.mysql.loading import Misfit
from beadline.sinks.mysql.problems import BLOCKED, without_values
from beadline.sinks.mysql.problems import said as mysql_said
from beadline.sinks.postgres.problems import is_blocked, said, why_refused
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
    ("text", "shown"),
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
def test_what_mysql_says(text: str, shown: str) -> None:
    assert without_values(text) == shown
    misfit = Misfit(text, "Data truncated for column 'v' at row 2")
    assert misfit.shown == f"{shown}; Data truncated for column 'v' at row 2"
    assert str(misfit).startswith(text)


class ServerError(Exception):
    """As ADBC raises what PostgreSQL says."""

    def __init__(self, sqlstate: str, said: str, **more: str) -> None:
        super().__init__(f"{said}\nDETAIL: {more}")
        self.sqlstate = sqlstate
        fields = {"context": "COPY orders, line 1, column id", "message_primary": said, **more}
        self.details = [(f"PG_DIAG_{key.upper()}", text.encode()) for key, text in fields.items()]


@pytest.mark.parametrize("state", ["U0001", "45000", "P0001", "38000", "HV000", "23514", "42501"])
def test_what_a_trigger_raises_is_not_shown(state: str) -> None:
    """Its words may hold any value, in whatever class; the names say where to look."""
    error = ServerError(
        state,
        "card 4111 is bad",
        message_detail="(1,4111)",
        message_hint="not 4111",
        source_file="pl_exec.c",
        table_name="orders",
        constraint_name="no_cards",
        context="PL/pgSQL function f() line 1 at RAISE",
    )
    text = said(error, "dbname=orders")
    assert "4111" not in text
    assert "constraint 'no_cards', table 'orders'" in text
    assert "the server's own log" in text
    assert text.endswith(f"(SQLSTATE {state})")
    assert "4111" not in why_refused(error, "dbname=orders").shown


def test_details_hints_and_contexts_are_shown_of_no_error() -> None:
    more = {"message_detail": "(1,4111)", "message_hint": "4111", "context": "line 1: 4111"}
    error = ServerError("55000", 'cannot delete from table "orders"', **more)
    assert said(error, "") == 'cannot delete from table "orders" (SQLSTATE 55000)'
    unknown = ServerError("U0001", "card 4111 is bad")
    assert "4111" not in said(unknown, "")


def test_what_a_statement_in_a_trigger_does_wrong_is_masked() -> None:
    context = "PL/pgSQL function f() line 1 at EXECUTE"
    error = ServerError("42601", 'syntax error at or near "4111"', context=context)
    assert said(error, "") == "syntax error at or near (not shown) (SQLSTATE 42601)"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("22P02", "ung\u00fcltige Eingabesyntax f\u00fcr Typ integer: \u00bb4111\u00ab"),
        ("22P02", "ung\u00fcltige Eingabesyntax: \u201e4111\u201c"),
        ("22P02", "syntaxe en entr\u00e9e invalide pour le type integer : \u00ab 4111 \u00bb"),
        ("22007", "invalid value '4111'"),
        ("22021", 'invalid byte sequence for encoding "UTF8": 0x41 0x11'),
        ("22P05", 'character with byte sequence 0x41 0x11 in encoding "UTF8" has no equivalent'),
    ],
)
def test_values_are_masked_in_every_language(state: str, text: str) -> None:
    shown = said(ServerError(state, text), "")
    assert "(not shown)" in shown
    assert not {"4111", "0x41", "0x11"} & {*shown.replace(":", " ").split()}
    assert "4111" not in shown


def test_what_a_trigger_of_mysql_signals_is_not_shown() -> None:
    address = MySqlAddress.parse("mysql://ann:secret@h/shop")
    assert "4111" not in mysql_said(Signal(1644, "card 4111 is bad"), address)


class Signal(Exception):
    """As pymysql raises what MySQL says."""


@pytest.mark.parametrize(
    ("state", "text", "shown"),
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
def test_what_postgresql_says(state: str, text: str, shown: str | None) -> None:
    why = why_refused(ServerError(state, text), "dbname=orders")
    assert why == f"column 'id': {text}"
    assert why.shown == f"column 'id': {shown or text}"


@pytest.mark.parametrize(
    ("state", "blocked"),
    [("28P01", True), ("42501", True), ("53200", True), ("57014", True), ("23505", False)],
)
def test_errors_a_person_can_correct_are_distinguished_from_errors_of_rows(
    state: str, blocked: bool
) -> None:
    """Over the former, ``drop=["name"]`` gives no decided epoch up."""
    assert is_blocked(ServerError(state, "no")) == blocked
    code = 1045 if blocked else 1062
    assert (code in BLOCKED) == blocked
