"""What ``beadline verify`` says it has not shown, and what it does not even begin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from beadline.errors import UsageError
from beadline.sink import Guarantee
from beadline.sinks import KafkaSink
from beadline.verify.compare import Reference, SinkContents
from beadline.verify.report import notes_of
from beadline.verify.run import check_any_rows
from beadline.verify.scratch_keys import pattern
from beadline.verify.task import InspectedSink, Inspection
from tests.kill.broken.sinks import OwnSink

FULL = Reference("own", {0: SinkContents(Counter([(1,)]))})
EMPTY = Reference("own", {0: SinkContents(Counter())})


def notes(reference: Reference, sink: type[OwnSink] = OwnSink) -> str:
    seen = InspectedSink("own", sink(Path("own.db"), "t"), reference.exactly)
    found = Inspection("orders", Guarantee.EXACTLY_ONCE, (seen,), ("console",), (), stateful=False)
    return "\n".join(notes_of(found, {"own": reference}))


def test_nothing_is_not_compared_with_nothing() -> None:
    check_any_rows({"own": FULL, "other": EMPTY})
    for references in ({"own": EMPTY, "other": EMPTY}, {"own": Reference("own", {})}):
        with pytest.raises(UsageError, match=r"no rows in any sink.*--records.*--output-mode"):
            check_any_rows(references)


def test_a_sink_without_rows_is_named() -> None:
    assert "own shows no rows" in notes(EMPTY)
    assert "shows no rows" not in notes(FULL)
    assert "console is not compared" in notes(FULL)


def test_a_prefix_of_redis_is_no_pattern() -> None:
    prefix = "shop[1]*?\\:"
    assert pattern(prefix) == "shop\\[1\\]\\*\\?\\\\:*"
    assert pattern("shop:") == "shop:*"


class NeitherSink(OwnSink):
    """With two methods, and no more."""

    grows = False
    atomic = False


def test_what_is_not_watched_is_reported_with_the_reason() -> None:
    assert "at the end only" not in notes(FULL)
    assert "at the end only: its epochs" in notes(replace(FULL, by_epoch=False))
    assert "at the end only" not in notes(replace(FULL, grows=False, atomic=True))
    weak = replace(FULL, grows=False, atomic=True, exactly=False)
    assert "at the end only: its rows change" in notes(weak)
    neither = notes(replace(FULL, grows=False), NeitherSink)
    assert "own is compared at the end only: it says neither grows" in neither


@pytest.mark.parametrize(("stateful", "chosen"), [(True, False), (True, True), (False, False)])
def test_a_job_with_state_and_no_expiry(stateful: bool, chosen: bool) -> None:
    seen = InspectedSink("topic", KafkaSink("localhost:9092", "t"), True)
    found = Inspection("orders", Guarantee.EXACTLY_ONCE, (seen,), (), (), stateful)
    told = notes_of(found, {"topic": FULL}, chosen=chosen)
    assert any("'expire' is left out" in note for note in told) == (stateful and not chosen)
