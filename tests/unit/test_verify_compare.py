"""What ``beadline verify`` calls lost, doubled, read too early, out of order and torn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from beadline.verify.compare import (
    Reference,
    SeenRow,
    SinkContents,
    ViolationKind,
    differences,
    end,
    in_common,
    moment,
    plain,
    rows_of,
    torn,
)

A, B, C, D = (("a", 1),), (("b", 1),), (("c", 1),), (("d", 1),)
# Epoch 0 brings a, epoch 1 brings b twice, epoch 2 brings c.
STATES = {
    0: SinkContents(Counter([A])),
    1: SinkContents(Counter([A, B, B])),
    2: SinkContents(Counter([A, B, B, C])),
}
GROWS = Reference("rows", STATES)
TOTALS = Reference(
    "totals",
    {
        0: SinkContents(Counter([("k", 1)])),
        1: SinkContents(Counter([("k", 3)])),
        2: SinkContents(Counter([("k", 4)])),
    },
    grows=False,
    atomic=True,
)


def kinds(found: object) -> list[ViolationKind]:
    assert isinstance(found, list)
    return [each.kind for each in found]


@pytest.mark.parametrize(
    ("before", "rows", "after", "wanted"),
    [
        (-1, [], -1, []),
        (-1, [A], 0, []),
        (0, [], 0, []),  # decided, and its commit may be to come
        (1, [A], 1, []),
        (1, [A, B], 1, []),  # in the midst of the commit
        (2, [A, B, B, C], 2, []),
        (7, [A, B, B, C], 9, []),  # epochs without rows at the end
        (1, [], 1, [ViolationKind.LOST]),
        (2, [A, B], 2, [ViolationKind.LOST]),
        (1, [A, A], 1, [ViolationKind.DUPLICATED]),
        (0, [A, B], 0, [ViolationKind.ABORTED]),
        (-1, [A], -1, [ViolationKind.ABORTED]),
        (1, [A, B, B, D], 1, [ViolationKind.ABORTED]),  # was never decided
        (2, [A, B, B, B], 2, [ViolationKind.DUPLICATED]),
        (1, [B, B, B], 1, [ViolationKind.LOST, ViolationKind.DUPLICATED]),
    ],
)
def test_any_moment(
    before: int, rows: list[SeenRow], after: int, wanted: list[ViolationKind]
) -> None:
    assert kinds(moment(GROWS, before - 1, Counter(rows), after)) == wanted


@pytest.mark.parametrize(
    ("before", "value", "after", "wanted"),
    [
        (1, 1, 1, []),
        (1, 3, 1, []),
        (1, 4, 1, [ViolationKind.ABORTED]),
        (2, 1, 2, [ViolationKind.LOST]),
        (1, 5, 1, [ViolationKind.WRONG]),
        (5, 4, 6, []),
    ],
)
def test_a_table_whose_rows_change(
    before: int, value: int, after: int, wanted: list[ViolationKind]
) -> None:
    assert kinds(moment(TOTALS, before - 1, Counter([("k", value)]), after)) == wanted
    assert moment(replace(TOTALS, atomic=False), before - 1, Counter([("k", value)]), after) == []


def test_an_at_least_once_sink_may_repeat_and_not_lose() -> None:
    weak = replace(GROWS, exactly=False)
    assert moment(weak, 0, Counter([A, A, B]), 1) == []
    assert kinds(moment(weak, 1, Counter([A]), 2)) == [ViolationKind.LOST]
    assert end(weak, SinkContents(Counter([A, A, B, B, C]))) == []
    assert kinds(end(weak, SinkContents(Counter([A, B, B])))) == [ViolationKind.LOST]


def test_the_end() -> None:
    assert end(GROWS, GROWS.end) == []
    assert kinds(end(GROWS, SinkContents(Counter([A, B, B])))) == [ViolationKind.LOST]
    assert kinds(end(GROWS, SinkContents(Counter([A, B, B, B, C])))) == [ViolationKind.DUPLICATED]
    assert kinds(end(GROWS, SinkContents(Counter([A, B, B, C, D])))) == [ViolationKind.WRONG]
    assert kinds(end(TOTALS, SinkContents(Counter([("k", 5)])))) == [ViolationKind.WRONG]
    (lost,) = end(GROWS, SinkContents(Counter([A, C])))
    assert (lost.rows, lost.epoch) == (2, 1)
    assert "'b'" in str(lost)


def test_order_is_compared_where_two_runs_agree_on_it() -> None:
    one = Reference("topic", {0: SinkContents(Counter([A, B]), {"k": (A, B), "m": (C, D)})})
    other = Reference("topic", {0: SinkContents(Counter([A, B]), {"k": (A, B), "m": (D, C)})})
    agreed = in_common(one, other)
    assert set(agreed.end.order) == {"k"}
    assert end(agreed, SinkContents(Counter([A, B]), {"k": (A, B)})) == []
    assert kinds(end(agreed, SinkContents(Counter([A, B]), {"k": (B, A)}))) == [
        ViolationKind.DISORDER
    ]


def test_a_torn_epoch() -> None:
    other = replace(GROWS, sink="other")
    shown = {"rows": GROWS.end, "other": SinkContents(Counter([A, C]))}
    found = torn([GROWS, other], shown)
    assert [(each.kind, each.sink, each.epoch) for each in found] == [
        (ViolationKind.TORN, "other", 1)
    ]
    assert torn([GROWS, other], {"rows": GROWS.end, "other": GROWS.end}) == []
    missing = SinkContents(Counter([A, B, B]))
    assert torn([GROWS, other], {"rows": missing, "other": missing}) == []  # lost, not torn


def test_runs_that_differ() -> None:
    assert differences(GROWS, GROWS) == []
    changed = replace(GROWS, states={**STATES, 2: SinkContents(Counter([A, B, B, D]))})
    assert "rows" in differences(GROWS, changed)[0]
    cut_otherwise = replace(GROWS, states={0: STATES[1], 1: STATES[2]})
    assert differences(GROWS, cut_otherwise) == []
    agreed = in_common(GROWS, cut_otherwise)
    assert not agreed.by_epoch
    assert moment(agreed, 4, Counter(), 5) == []
    assert kinds(end(agreed, SinkContents(Counter([A])))) == [ViolationKind.LOST]


def test_values_of_any_library_can_be_counted() -> None:
    rows = rows_of([[{"b": [1, 2], "a": None}, float("nan"), bytearray(b"x")]] * 2)
    assert Counter(rows).total() == 2
    assert len(Counter(rows)) == 1
    assert plain({1, 2}) in ((1, 2), (2, 1))
