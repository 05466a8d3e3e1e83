"""The whole judgement: a query is as good as its weakest part. Pure; ``spark/facts.py`` looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from beadline.guarantee.plan import Circumstances, PlanFacts, judge_plan
from beadline.guarantee.report import Finding, FindingKind, Report
from beadline.guarantee.settings import judge_settings
from beadline.guarantee.sources import SourceFacts, judge_source
from beadline.sink import Capabilities, Guarantee

_EXACTLY = Guarantee.EXACTLY_ONCE
_FUNCTIONS = {
    Guarantee.EXACTLY_ONCE: "each epoch is prepared, decided once, and then committed everywhere",
    Guarantee.AT_LEAST_ONCE: "parts are published as they finish: after a crash the epoch is "
    "redelivered, and the rows already published show twice",
}


@dataclass(frozen=True)
class SinkFacts:
    """A sink, what it reports about itself and its server, and what it is allowed to be."""

    name: str
    capabilities: Capabilities
    allow: Guarantee | None = None
    rows: PlanFacts | None = None  # the plan of its ``rows=``, if it has one
    dead_letter: bool = False  # whether it takes only what another sink refuses


@dataclass(frozen=True)
class QueryFacts:
    """All that a query's guarantee depends on."""

    query: str
    asked: Guarantee
    sources: Sequence[SourceFacts]
    plan: PlanFacts
    sinks: Sequence[SinkFacts]
    stateful: bool = False
    allow: Guarantee | None = None  # the weakest level that a source may have
    conf: Mapping[str, str] = field(default_factory=dict)
    restart_s: float = 600.0  # how long a restart may take, in the worst case to plan for


def judge(facts: QueryFacts) -> Report:
    """Return what the query promises, part by part."""
    found = [*_function(facts), *_sources(facts), *_plans(facts), *_state(facts)]
    found += [*judge_settings(facts.conf, facts.stateful), *_sinks(facts)]
    return Report(facts.query, facts.asked, tuple(found))


def _function(facts: QueryFacts) -> Iterator[Finding]:
    name = str(facts.asked).replace("-", "_") + "()"
    cure = "" if facts.asked is _EXACTLY else "use exactly_once()"
    yield Finding(FindingKind.FUNCTION, name, facts.asked, _FUNCTIONS[facts.asked], cure)


def _sources(facts: QueryFacts) -> Iterator[Finding]:
    seen_before: list[Finding] = []
    for seen in facts.sources:
        for found in judge_source(seen):
            if found not in seen_before:  # a source may be there twice, in a union with itself
                seen_before.append(found)
                allowed = facts.allow is not None and found.level >= facts.allow
                yield replace(found, allowed=allowed)


def _plans(facts: QueryFacts) -> Iterator[Finding]:
    expiring = tuple(sink.name for sink in facts.sinks if sink.capabilities.expires)
    shared = sum(not sink.dead_letter for sink in facts.sinks) > 1
    yield from judge_plan(facts.plan, Circumstances(facts.asked, facts.stateful, expiring, shared))
    for sink in facts.sinks:
        if sink.rows is None:
            continue
        own = (sink.name,) if sink.capabilities.expires else ()
        yield from judge_plan(sink.rows, Circumstances(facts.asked, facts.stateful, own))
        yield Finding(
            FindingKind.ROWS,
            sink.rows.part,
            _EXACTLY,
            "it runs once or more for every epoch. Any side effects (calls, files, counters) "
            "cannot be seen, and would be repeated after a crash",
            "make it do nothing but return rows",
            warning=True,
        )


def _state(facts: QueryFacts) -> Iterator[Finding]:
    if facts.stateful:
        yield Finding(
            FindingKind.STATE,
            "state",
            _EXACTLY,
            "Spark keeps a version of the state for each epoch in the checkpoint, and goes back to "
            "the one before an epoch that is redelivered",
        )


def _sinks(facts: QueryFacts) -> Iterator[Finding]:
    for sink in facts.sinks:
        can, part = sink.capabilities, f"sink {sink.name}"
        allowed = sink.allow is not None and can.guarantee >= sink.allow
        level = min(can.guarantee, facts.asked) if can.guarantee < facts.asked else can.guarantee
        yield Finding(FindingKind.SINK, part, level, can.sentence, can.raised_by, allowed=allowed)
        yield from _expiry(facts, sink)


def _expiry(facts: QueryFacts, sink: SinkFacts) -> Iterator[Finding]:
    """A restart that takes longer than the server keeps what is prepared."""
    after_s = sink.capabilities.expires_after_s
    if facts.asked is _EXACTLY and after_s is not None and after_s < facts.restart_s:
        yield Finding(
            FindingKind.SINK,
            f"sink {sink.name}",
            _EXACTLY,
            f"prepared parts are discarded there after {after_s:g} s, and a restart may take "
            f"{facts.restart_s:g} s: decided parts are then proven lost and replayed from the "
            "source, which must still have the rows",
            f"raise {sink.capabilities.timeout_setting} above the longest restart",
            warning=True,
        )
