"""Functions and classes of a job file's own, in a module that Spark's workers can import too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beadline.event_time import KeyedContext, KeyedProcess


class Numbers(KeyedProcess):
    """The rows of each key, numbered; the first of each on an output of its own."""

    def __init__(self, first: int) -> None:
        """``first`` is the number of the first row."""
        self.first = first

    def open(self, state: Any) -> None:
        self.count = state.value("count", "bigint")

    def process(self, row: Any, ctx: KeyedContext) -> Iterator[Any]:
        before = self.count.get()
        number = self.first if before is None else before + 1
        self.count.update(number)
        if before is None:
            ctx.emit_to("firsts", {"shop": row.shop})
        yield {"id": row.id, "number": number}


def load_shops() -> list[dict[str, Any]]:
    """A table to look shops up in."""
    return [{"shop": "a", "city": "Bonn"}, {"shop": "b", "city": "Berlin"}]
