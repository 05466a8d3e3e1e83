"""The judgement, on facts alone: the weakest part counts, and says what would raise it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from beadline.guarantee import FindingKind, SourceFacts, declare
from beadline.guarantee.judge import QueryFacts, SinkFacts, judge
from beadline.guarantee.plan import ExpressionFacts, PlanFacts
from beadline.guarantee.sources import judge_source
from beadline.sink import Capabilities, Guarantee

EXACTLY = Guarantee.EXACTLY_ONCE
AT_LEAST = Guarantee.AT_LEAST_ONCE
AT_MOST = Guarantee.AT_MOST_ONCE

COMMITTED = {"kafka.isolation.level": "read_committed"}
KAFKA = SourceFacts("kafka", "orders", COMMITTED)
PLAN = PlanFacts("the query's plan", FindingKind.PLAN)


def sink(
    name: str = "out",
    guarantee: Guarantee = EXACTLY,
    allow: Guarantee | None = None,
    rows: PlanFacts | None = None,
    expires_after_s: float | None = None,
) -> SinkFacts:
    can = Capabilities(
        guarantee,
        f"{name} keeps rows",
        "target",
        expires=expires_after_s is not None,
        expires_after_s=expires_after_s,
        timeout_setting="its timeout",
        raised_by="buy a better one",
    )
    return SinkFacts(name, can, allow, rows)


def facts(**changed: object) -> QueryFacts:
    given: dict[str, object] = {
        "query": "orders",
        "asked": EXACTLY,
        "sources": (KAFKA,),
        "plan": PLAN,
        "sinks": (sink(),),
        **changed,
    }
    return QueryFacts(**given)  # type: ignore[arg-type]


def test_all_parts_good() -> None:
    report = judge(facts())
    assert report.level is EXACTLY
    assert report.limits == report.warnings == report.refusals == ()
    assert str(report).startswith("query 'orders' is exactly-once\nbecause:")
    assert report.to_dict()["level"] == "exactly-once"


def test_the_weakest_part_limits_and_says_what_would_raise_it() -> None:
    report = judge(facts(sinks=(sink(), sink("console", AT_LEAST))))
    assert report.level is AT_LEAST
    (limit,) = report.limits
    assert (limit.part, limit.cure) == ("sink console", "buy a better one")
    assert report.refusals == (limit,)
    assert "was meant to be exactly-once" in str(report)


def test_what_is_allowed_lowers_the_level_and_is_not_refused() -> None:
    report = judge(facts(sinks=(sink("console", AT_LEAST, allow=AT_LEAST),)))
    assert report.level is AT_LEAST
    assert report.refusals == ()
    weaker = judge(facts(sinks=(sink("console", AT_MOST, allow=AT_LEAST),)))
    assert len(weaker.refusals) == 1


def test_the_function_limits_too() -> None:
    report = judge(facts(asked=AT_LEAST))
    assert report.level is AT_LEAST
    assert [found.kind for found in report.limits] == [FindingKind.FUNCTION]
    assert report.refusals == ()


@pytest.mark.parametrize(
    ("seen", "level", "word"),
    [
        (KAFKA, EXACTLY, "read again"),
        (SourceFacts("kafka", "orders"), AT_LEAST, "reads uncommitted"),
        (SourceFacts("kafka", "o", {**COMMITTED, "failondataloss": "FALSE"}), AT_MOST, "deleted"),
        (SourceFacts("parquet", "/in"), EXACTLY, "names the files"),
        (SourceFacts("json", "/in", {"ignoremissingfiles": "true"}), AT_MOST, "skipped"),
        (SourceFacts("rate"), EXACTLY, "its number"),
        (SourceFacts("socket", "localhost"), AT_MOST, "read again"),
        (SourceFacts("delta", "/table"), EXACTLY, "VACUUM"),
        (SourceFacts("somebody's"), EXACTLY, "does not know"),
    ],
)
def test_sources(seen: SourceFacts, level: Guarantee, word: str) -> None:
    found = judge_source(seen)
    assert min(each.level for each in found) is level
    assert word in " ".join(each.why for each in found)


def test_a_socket_is_refused_unless_it_is_allowed() -> None:
    socket = SourceFacts("socket", "localhost")
    for asked in (EXACTLY, AT_LEAST):
        (refusal,) = judge(facts(asked=asked, sources=(socket,))).refusals
        assert "journaled" in refusal.cure
    report = judge(facts(sources=(socket,), allow=AT_MOST))
    assert report.level is AT_MOST
    assert report.refusals == ()


def test_a_source_of_ones_own() -> None:
    declare("tap", "at-most-once", "water does not flow back", "put a bucket under it")
    (found,) = judge_source(SourceFacts("TAP"))
    assert (found.level, found.cure) == (AT_MOST, "put a bucket under it")


RAND = ExpressionFacts("Rand", "rand()", deterministic=False)


def test_chance_is_harmless_where_nothing_decided_is_made_again() -> None:
    report = judge(facts(plan=PlanFacts("the query's plan", FindingKind.PLAN, (RAND,))))
    assert report.level is EXACTLY
    (warning,) = report.warnings
    assert "rand()" in warning.why
    assert "no harm" in warning.why


def test_chance_under_two_sinks_costs_the_epoch_and_no_row() -> None:
    plan = PlanFacts("the query's plan", FindingKind.PLAN, (RAND,))
    (warning,) = judge(facts(plan=plan, sinks=(sink(), sink("other")))).warnings
    assert "if an executor is lost" in warning.why
    assert "redelivered" in warning.why
    dead_letter = replace(sink("dead-letter"), dead_letter=True)  # is given none of the plan's rows
    (warning,) = judge(facts(plan=plan, sinks=(sink(), dead_letter))).warnings
    assert "no harm" in warning.why


def test_chance_where_a_part_may_be_lost_or_state_is_kept() -> None:
    plan = PlanFacts("the query's plan", FindingKind.PLAN, (RAND,))
    report = judge(facts(plan=plan, stateful=True, sinks=(sink("topic", expires_after_s=900),)))
    why = report.warnings[0].why
    assert "if topic loses a decided part, the query stops" in why
    assert "state after a crash may differ" in why


def test_chance_in_at_least_once() -> None:
    plan = PlanFacts("the query's plan", FindingKind.PLAN, (RAND,))
    assert "have a different value" in judge(facts(asked=AT_LEAST, plan=plan)).warnings[0].why


def test_where_rows_lie_is_not_chance() -> None:
    lies = ExpressionFacts("SparkPartitionID", "SPARK_PARTITION_ID()", deterministic=False)
    assert judge(facts(plan=PlanFacts("p", FindingKind.PLAN, (lies,)))).warnings == ()


def test_a_clock_counts_in_rows_and_not_in_the_stream_itself() -> None:
    clock = ExpressionFacts("CurrentTimestamp", "current_timestamp()")
    assert judge(facts(plan=PlanFacts("p", FindingKind.PLAN, (clock,)))).warnings == ()
    rows = PlanFacts("rows= of sink out", FindingKind.ROWS, (clock,))
    clocks = judge(facts(sinks=(sink(rows=rows),))).warnings
    assert "differs each time rows= runs" in clocks[0].why


def test_python_code_that_uses_a_clock_and_code_that_cannot_be_read() -> None:
    udf = ExpressionFacts("PythonUDF", "stamp(id)", chance=("time.time",))
    dark = ExpressionFacts("PythonUDF", "dark(id)", unreadable=True)
    report = judge(facts(plan=PlanFacts("p", FindingKind.PLAN, (udf, dark))))
    whys = " ".join(found.why for found in report.warnings)
    assert "stamp(id), which calls time.time()" in whys
    assert "dark(id) could not be inspected" in whys


def test_what_rows_does_beside_returning_rows_cannot_be_seen() -> None:
    rows = PlanFacts("rows= of sink out", FindingKind.ROWS)
    (warning,) = judge(facts(sinks=(sink(rows=rows),))).warnings
    assert "cannot be seen" in warning.why


def test_a_timeout_shorter_than_the_restart() -> None:
    short = facts(sinks=(sink("topic", expires_after_s=60),), restart_s=300)
    (warning,) = judge(short).warnings
    assert "after 60 s" in warning.why
    assert "its timeout" in warning.cure
    assert judge(facts(sinks=(sink("topic", expires_after_s=900),), restart_s=300)).warnings == ()


@pytest.mark.parametrize(
    ("key", "value", "stateful", "level"),
    [
        ("spark.speculation", "true", False, EXACTLY),
        ("spark.sql.streaming.minBatchesToRetain", "1", False, AT_MOST),
        ("spark.sql.streaming.statefulOperator.checkCorrectness.enabled", "false", True, AT_MOST),
        ("spark.sql.streaming.stateStore.stateSchemaCheck", "false", True, AT_MOST),
        ("spark.sql.streaming.unsupportedOperationCheck", "false", False, AT_MOST),
    ],
)
def test_settings(key: str, value: str, stateful: bool, level: Guarantee) -> None:
    report = judge(facts(conf={key: value}, stateful=stateful))
    assert report.level is level
    assert [found.part for found in report.warnings] == [f"{key}={value}"]
    if stateful:
        assert judge(facts(conf={key: value})).warnings == ()


@pytest.mark.parametrize(
    ("options", "level", "words"),
    [
        ({}, EXACTLY, "read again from there"),
        ({"failondataloss": "true", "ignorechanges": "false"}, EXACTLY, "read again from there"),
        ({"failondataloss": "False"}, AT_MOST, "skipped silently"),
        ({"ignorechanges": "true"}, AT_LEAST, "read a second time"),
        ({"ignorechanges": "true", "failondataloss": "false"}, AT_MOST, "skipped silently"),
    ],
)
def test_options_of_a_delta_source(options: dict[str, str], level: Guarantee, words: str) -> None:
    found = judge_source(SourceFacts("delta", "/table", options))
    weakest = min(found, key=lambda each: each.level)
    assert weakest.level is level
    assert words in weakest.why


@pytest.mark.parametrize("name", ["ignoreDeletes", "skipChangeCommits"])
def test_what_a_delta_source_skips_on_purpose_is_reported(name: str) -> None:
    told, rest = judge_source(SourceFacts("delta", "/table", {name.lower(): "true"}))
    assert (told.level, told.warning, rest.warning) == (EXACTLY, True, False)
    assert f"{name} is true" in told.why
    assert "are skipped" in told.why
