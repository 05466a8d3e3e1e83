"""Reading Spark's plan of a stream: is it stateful?"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

# A plan made of nothing else keeps no state. Whatever is not known here counts as stateful, a
# watermark included, because the price of a mistake on that side is one extra pass at recovery.
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


def is_stateful(frame: DataFrame) -> bool:
    """Whether the streaming plan keeps state that must move on with every epoch."""
    return not _nodes(frame._jdf.queryExecution().analyzed()) <= STATELESS_NODES


def _nodes(plan: Any) -> set[str]:
    """Return the names of all nodes of a logical plan."""
    names = {plan.getClass().getSimpleName()}
    children = plan.children()
    for index in range(children.size()):
        names |= _nodes(children.apply(index))
    return names
