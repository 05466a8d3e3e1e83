"""Which settings of a part decide over its commands, and which of them have changed since."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from beadline.sink import staged
from beadline.sinks.redis.columns import Layout

if TYPE_CHECKING:
    import pyarrow as pa


def with_settings(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    return staged.with_settings(batch, asdict(layout))


def changed(schema: pa.Schema, layout: Layout) -> str:
    """Say which settings are not those that the part was staged under; empty if all are."""
    before, now = staged.settings_in(schema), asdict(layout)
    return ", ".join(
        f"{name}= was {before[name]!r} and is {now.get(name)!r}"
        for name in before
        if before[name] != now.get(name)
    )
