"""What an operator cannot follow in a query: rows that are behind the watermark when they come.

Beadline's operators judge lateness by the watermark of the epoch, which is the one by which Spark's
aggregations and outer joins emit a row: when it has passed the row's time. Behind them a row that
came in time would be late, or not, by how Spark divides the source into epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beadline.errors import NOTHING_WRITTEN, BadQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OUTER = ("LeftOuter", "RightOuter", "FullOuter")


def check_follows(what: str, frame: DataFrame) -> None:
    """Refuse rows that wait in an aggregation or an outer join until the watermark passes them."""
    if before := _waits_in(frame._jdf.queryExecution().analyzed()):
        raise BadQuery(
            f"{what}: these rows come from {before}, which emits them when the watermark has "
            "passed their time: here they would be late. Write them to a sink, such as a Kafka "
            f"topic, and read them in a query of their own, or use an inner join. {NOTHING_WRITTEN}"
        )


def _waits_in(plan: Any) -> str | None:
    """Return which operator of a plan holds rows back; None if there is none."""
    if not plan.isStreaming():
        return None
    name = plan.getClass().getSimpleName()
    if name == "Aggregate":
        return "an aggregation, such as windows"
    children = plan.children()
    inputs = [children.apply(at) for at in range(children.size())]
    if (
        name == "Join"
        and plan.joinType().toString() in _OUTER
        and all(one.isStreaming() for one in inputs)
    ):
        return "an outer join of two streams"
    return next((found for found in map(_waits_in, inputs) if found), None)
