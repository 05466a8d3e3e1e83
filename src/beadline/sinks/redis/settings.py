"""The settings that a part was staged under, written into its file.

A decided epoch may be finished by a later start, whose settings may be others. Under them its rows
would be other commands: one that was marked as deleted would be set. So the file itself says under
which settings its rows were taken, and the commit goes on with those only.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from beadline.sinks.redis.columns import Layout

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"beadline.settings"


def with_settings(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    text = json.dumps(asdict(layout)).encode()
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), _KEY: text})


def changed(schema: pa.Schema, layout: Layout) -> str:
    """Say which settings are not those that the part was staged under; empty if all are."""
    before = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    now = asdict(layout)
    return ", ".join(
        f"{name}= was {before[name]!r} and is {now.get(name)!r}"
        for name in before
        if before[name] != now.get(name)
    )
