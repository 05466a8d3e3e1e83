"""Reading Spark's plan of a stream: is it stateful, and what does it read?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from beadline.sources.ticker import TICKER_FORMAT

# A plan of only these nodes keeps no state. Every other node counts as stateful, including a
# watermark, because the cost of that mistake is only one extra pass at recovery.
STATELESS_NODES = frozenset(
    {
        "CollectMetrics",
        "DeserializeToObject",
        "Expand",
        "Filter",
        "Generate",
        "LocalRelation",
        "LogicalRDD",
        "LogicalRelation",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "PythonMapInArrow",
        "Range",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SerializeFromObject",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "TypedFilter",
        "Union",
        "View",
    }
)


# Those of them that may bring rows in any order.
SHUFFLES = frozenset({"Repartition", "RepartitionByExpression"})


def is_narrow(frame: DataFrame) -> bool:
    """Whether the plan, run again on the same input, gives the same rows in the same order."""
    return _names(frame) <= STATELESS_NODES - SHUFFLES


def is_stateful(frame: DataFrame) -> bool:
    """Whether the streaming plan keeps state that must advance with every epoch."""
    return not _names(frame) <= STATELESS_NODES


def never_idle(frame: DataFrame) -> bool:
    """Whether Spark runs epochs without rows forever, since a timer may be due at any time."""
    off = frame.sparkSession.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    return off == "true" and any(
        node.getClass().getSimpleName().startswith("TransformWithState")
        and str(node.timeMode()) == "ProcessingTime"
        for node in nodes(plan_of(frame))
    )


def has_watermark(frame: DataFrame) -> bool:
    """Whether the plan has a watermark, of one input or of several."""
    return "EventTimeWatermark" in _names(frame)


def runs_python(frame: DataFrame) -> bool:
    """Whether the user's own Python functions are in the plan: they get Arrow batches too."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    plan = plan_of(frame)
    if plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()):
        return True
    return any(_is_python(node) for node in nodes(plan))


def _is_python(node: Any) -> bool:
    """Whether a node is a table function or a source that is written in Python."""
    name = node.getClass().getSimpleName()
    if name == "StreamingRelationV2" and node.sourceName() == TICKER_FORMAT:
        return False  # ours, one row at a time
    inner = {"Generate": "generator", "StreamingRelationV2": "table"}.get(name)
    return inner is not None and "Python" in getattr(node, inner)().getClass().getSimpleName()


def _names(frame: DataFrame) -> set[str]:
    """Return the names of all nodes of a logical plan."""
    return {node.getClass().getSimpleName() for node in nodes(plan_of(frame))}


def plan_of(frame: DataFrame) -> Any:
    """Return a frame's logical plan, with each ``WITH x AS (…)`` put where it is used.

    Spark does the same before it runs a stream: each use is a separate source in the offset log,
    and a WITH that is not used is not read.
    """
    plan = frame._jdf.queryExecution().analyzed()
    if not any(node.getClass().getSimpleName() == "WithCTE" for node in nodes(plan)):
        return plan
    jvm = frame.sparkSession.sparkContext._jvm
    assert jvm is not None
    always_inline, keep_unused = True, False
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(always_inline, keep_unused)
    return inline.apply(plan)


def nodes(plan: Any) -> Iterator[Any]:
    """Yield all nodes of a logical plan."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from nodes(children.apply(index))


def source_options(frame: DataFrame) -> list[dict[str, str]]:
    """Return the options of each source, in the order of the lines of Spark's offset log.

    That is the leaves from left to right; a source that is used twice (a union with itself) has two
    lines. Sources of the old kind, such as files, have no options to show.
    """
    found = []
    for leaf in streaming_leaves(plan_of(frame)):
        new = leaf.getClass().getSimpleName() == "StreamingRelationV2"
        found.append(dict(leaf.extraOptions()) if new else {})
    return found


def source_folders(frame: DataFrame) -> list[int]:
    """Return each source's folder below ``sources/``, in the order of Spark's offset log.

    Sources are numbered from left to right; the same relation, used twice, is numbered once.
    """
    known: list[Any] = []
    folders = []
    for leaf in streaming_leaves(plan_of(frame)):
        number = next((at for at, other in enumerate(known) if leaf.equals(other)), len(known))
        if number == len(known):
            known.append(leaf)
        folders.append(number)
    return folders


def has_own_log(frame: DataFrame) -> bool:
    """Whether a source keeps a log of its own below ``sources/``, as Spark's file source does."""
    leaves = streaming_leaves(plan_of(frame))
    return any(leaf.getClass().getSimpleName() != "StreamingRelationV2" for leaf in leaves)


def streaming_leaves(plan: Any) -> Iterator[Any]:
    """Yield the streaming sources at the leaves of a logical plan, from left to right."""
    for node in nodes(plan):
        if node.children().size() == 0 and node.isStreaming():
            yield node
