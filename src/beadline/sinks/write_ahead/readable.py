"""Rows that no receiver could be given, and those that a user's ``accepts`` turns down."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from beadline.errors import PrepareFailed
from beadline.sink import Part, refuse, without_unreadable

if TYPE_CHECKING:
    import pyarrow as pa

Accepts = Callable[["pa.RecordBatch"], tuple["pa.Array", str]]


def without_refused(batch: pa.RecordBatch, accepts: Accepts | None, part: Part) -> pa.RecordBatch:
    """Refuse what cannot be delivered, each row once, and return the others."""
    import pyarrow.compute as pc

    batch = without_unreadable(batch, part)
    if accepts is None or not batch.num_rows:
        return batch
    good, reason = _asked(accepts, batch)
    return refuse(batch, pc.invert(good), reason, part)


def _asked(accepts: Accepts, batch: pa.RecordBatch) -> tuple[Any, str]:
    """Return what ``accepts`` says, if it makes sense; null is no."""
    import pyarrow as pa
    import pyarrow.compute as pc

    answer = accepts(batch)
    try:
        mask, reason = answer
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        good = pc.fill_null(pa.array(mask, pa.bool_()), False)
        if len(good) != batch.num_rows or not isinstance(reason, str) or not reason:
            raise ValueError
    except (TypeError, ValueError):
        raise PrepareFailed(
            f"accepts= must return a boolean for each of {batch.num_rows} rows, true for those "
            "that are taken, and one reason for the others as text: (pa.array([True, ...]), "
            f"'why'). It returned {type(answer).__name__}. Nothing of the epoch was written."
        ) from None
    return good, reason
