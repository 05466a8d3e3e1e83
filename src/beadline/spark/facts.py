"""Inspects a stream for ``guarantee.judge``: sources, expressions, settings and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from beadline.guarantee.judge import QueryFacts, SinkFacts
from beadline.guarantee.plan import ExpressionFacts, PlanFacts
from beadline.guarantee.report import FindingKind
from beadline.guarantee.settings import RISKY_KEYS
from beadline.guarantee.sources import SourceFacts
from beadline.sink import BoundSink
from beadline.spark.plan import is_stateful, nodes, plan_of, streaming_leaves
from beadline.spark.python_code import calls_by_chance, can_be_read, code_held_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from beadline.stream import Stream

_TEXT_LENGTH_MAX = 80
_TABLES = ("DataSourceV2Relation", "HiveTableRelation", "LogicalRelation")


def facts(stream: Stream, sinks: Sequence[BoundSink], restart_s: float | None = None) -> QueryFacts:
    """Return everything that a judgement needs; nothing is read or written."""
    bound = {sink.name: sink for sink in sinks}
    seen = [
        SinkFacts(
            output.name,
            bound[output.name].capabilities,
            output.allow,
            None if output.rows is None else _rows_plan(output.name, output.rows, stream.frame),
            bool(output.refused_by),
        )
        for output in stream.outputs
    ]
    more = {} if restart_s is None else {"restart_s": restart_s}
    return QueryFacts(
        query=stream.name,
        asked=stream.mode,
        sources=tuple(sources(stream.frame)),
        plan=PlanFacts("the query's plan", FindingKind.PLAN, tuple(expressions(stream.frame))),
        sinks=tuple(seen),
        stateful=is_stateful(stream.frame),
        allow=stream.allow,
        conf=_settings(stream.frame),
        **more,
    )


def sources(frame: DataFrame) -> Iterator[SourceFacts]:
    """Yield the streaming sources of a plan, in its order."""
    for leaf in streaming_leaves(plan_of(frame)):
        yield _SHAPES.get(leaf.getClass().getSimpleName(), _other)(leaf)


def _new(leaf: Any) -> SourceFacts:
    options = {name.lower(): value for name, value in dict(leaf.extraOptions()).items()}
    where = next((options[name] for name in _WHERE if options.get(name)), "")
    return SourceFacts(leaf.sourceName(), where, options)


def _old(leaf: Any) -> SourceFacts:
    source = leaf.dataSource()
    options = {str(pair._1()).lower(): str(pair._2()) for pair in _each(source.options().toSeq())}
    paths = options.get("path", "") or ", ".join(_each(source.paths()))
    return SourceFacts(source.className().rpartition(".")[2], paths, options)


def _other(leaf: Any) -> SourceFacts:
    return SourceFacts(leaf.getClass().getSimpleName())


_SHAPES: dict[str, Callable[[Any], SourceFacts]] = {
    "StreamingRelationV2": _new,
    "StreamingRelation": _old,
}
# Options that identify a source for a person; never one that may hold a secret.
_WHERE = ("subscribe", "subscribepattern", "assign", "path", "host", "beadline.input")


def expressions(frame: DataFrame) -> Iterator[ExpressionFacts]:
    """Yield a plan's non-deterministic expressions, and the clocks."""
    for node in nodes(plan_of(frame)):
        for expression in _each(node.expressions()):
            yield from _parts(expression)
        table = _table_read_again(node)
        if table:
            yield ExpressionFacts("Table", f"table {_shortened(table)}", deterministic=False)


def _table_read_again(node: Any) -> str:
    """Return the name of a table that the stream is joined with and that others may change.

    Not for files: which ones they are is fixed when the frame is made.
    """
    kind = node.getClass().getSimpleName()
    if node.children().size() or node.isStreaming() or kind not in _TABLES:
        return ""
    if kind == "DataSourceV2Relation":
        return str(node.name())
    if kind == "HiveTableRelation":
        return str(node.tableMeta().identifier().unquotedString())
    relation = node.relation()
    files = relation.getClass().getSimpleName() == "HadoopFsRelation"
    return "" if files else str(relation.toString())


def _parts(expression: Any) -> Iterator[ExpressionFacts]:
    children = list(_each(expression.children()))
    for child in children:
        yield from _parts(child)
    # Not deterministic only because a child is not: the child reports it.
    deterministic = expression.deterministic() or not all(c.deterministic() for c in children)
    name = expression.getClass().getSimpleName()
    text = _shortened(expression.sql())
    chance: tuple[str, ...] = ()
    unreadable = False
    if name in ("PythonUDF", "PythonUDAF", "PythonUDTF"):
        functions = _functions(_function(expression))
        calls = (call for one in functions or () for call in calls_by_chance(one))
        chance = tuple(dict.fromkeys(calls))
        unreadable = not chance and (functions is None or not all(map(can_be_read, functions)))
    yield ExpressionFacts(name, text, deterministic, chance, unreadable)


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH_MAX else text[:_TEXT_LENGTH_MAX] + "…"


def _function(expression: Any) -> Callable[..., Any] | None:
    """The Python function as it is sent to the workers; None if it cannot be loaded."""
    from pyspark import cloudpickle

    try:
        command = cloudpickle.loads(bytes(expression.func().command().unsafeArray()))
    except Exception:  # noqa: BLE001 (whatever a user's object does when it is unpickled)
        return None
    found = command[0] if isinstance(command, tuple) else command
    return found if callable(found) else None


def _functions(function: Callable[..., Any] | None) -> list[Callable[..., Any]] | None:
    """The code to inspect; for a stateful processor, all the code that it consists of."""
    processor = getattr(getattr(function, "__self__", None), "_stateful_processor", None)
    if processor is not None:
        return list(code_held_by(processor))
    return None if function is None else [function]


def _rows_plan(name: str, rows: Any, frame: DataFrame) -> PlanFacts:
    """The plan of a sink's ``rows=``, which was tried before on an empty frame."""
    shape = frame.sparkSession.createDataFrame([], frame.schema)
    return PlanFacts(f"rows= of sink {name}", FindingKind.ROWS, tuple(expressions(rows(shape))))


def _settings(frame: DataFrame) -> dict[str, str]:
    found = {key: frame.sparkSession.conf.get(key, None) for key in RISKY_KEYS}
    return {key: value for key, value in found.items() if value is not None}


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
