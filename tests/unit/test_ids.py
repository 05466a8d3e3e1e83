"""Ids: strict to build, lenient to parse, and the same after a journey through a file name."""

from __future__ import annotations

import string

import hypothesis.strategies as st
import pytest
from hypothesis import given

from beadline.errors import BadQuery
from beadline.ids import NAME_LENGTH_MAX, PartId, QueryId, check_name

INCARNATION = "0123456789abcdef" * 2
FIRST = string.ascii_letters + string.digits
names = st.builds(
    lambda first, rest: first + rest,
    st.sampled_from(FIRST),
    st.text(FIRST + "_.-", max_size=NAME_LENGTH_MAX - 1),
)
incarnations = st.text("0123456789abcdef", min_size=32, max_size=32)
numbers = st.integers(0, 2**40)
parts = st.builds(PartId, names, incarnations, names, numbers, numbers, numbers, numbers)


@given(parts)
def test_round_trip(part: PartId) -> None:
    text = str(part)
    assert PartId.parse(text) == part
    assert len(text) <= 230
    assert text.isascii()
    assert "/" not in text, "it names files"
    assert text.isprintable()


@given(parts, parts)
def test_two_parts_never_share_a_text(one: PartId, other: PartId) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(st.text())
def test_text_that_is_no_part_id_is_none(text: str) -> None:
    assert PartId.parse(text) is None


@given(parts, st.integers(0, 300), st.characters())
def test_a_changed_id_is_another_id_or_none(part: PartId, place: int, letter: str) -> None:
    """Never an error: a stranger's id must not break a recovery."""
    text = str(part)
    changed = text[:place] + letter + text[place:]
    found = PartId.parse(changed)
    assert found is None or isinstance(found, PartId)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "beadline",
        "~~~~~~~",
        f"beadline~orders~{INCARNATION}~files~1~2~3",
        f"beadline~orders~{INCARNATION}~files~1~2~3~4~5",
        f"somebody~orders~{INCARNATION}~files~1~2~3~4",
        f"beadline~orders~{INCARNATION}~files~1~2~3~x",
        f"beadline~orders~{INCARNATION}~files~1~2~3~-4",
        f"beadline~or ders~{INCARNATION}~files~1~2~3~4",
        f"beadline~orders~{INCARNATION}~~1~2~3~4",
    ],
)
def test_what_is_not_ours(text: str) -> None:
    assert PartId.parse(text) is None


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "-a", ".a", "_a", "a/b", "a~b", "ä", "a\n", "a" * 61, "a\0"]
)
def test_a_name_that_cannot_be_used_is_explained(name: str) -> None:
    with pytest.raises(BadQuery, match="Nothing was written"):
        check_name("query", name)
    with pytest.raises(BadQuery):
        QueryId(name, INCARNATION, "file:/c")
    with pytest.raises(BadQuery):
        PartId("orders", INCARNATION, name, 1, 2, 3, 4)


def test_a_name_is_not_a_number() -> None:
    with pytest.raises(BadQuery):
        check_name("query", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("incarnation", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32])
def test_an_incarnation_is_32_hex_digits(incarnation: str) -> None:
    with pytest.raises(ValueError, match="32 hex digits"):
        QueryId("orders", incarnation, "file:/c")


def test_a_number_is_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        PartId("orders", INCARNATION, "files", 1, 2, 3, -1)


def test_a_part_knows_its_query() -> None:
    part = PartId("orders", INCARNATION, "files", 1, 2, 3, 4)
    assert part.belongs_to(QueryId("orders", INCARNATION, "file:/c"))
    assert not part.belongs_to(QueryId("others", INCARNATION, "file:/c"))
    assert not part.belongs_to(QueryId("orders", "f" * 32, "file:/c"))
