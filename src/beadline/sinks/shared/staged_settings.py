"""The settings that a part was staged under, written into its file.

A decided epoch may be finished by a later start, whose settings may be others. Under them its rows
would mean something else: one that was marked as deleted would be written. So the file itself says
under which settings its rows were taken, and the commit goes on with those only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"beadline.settings"


def with_settings(batch: pa.RecordBatch, settings: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    text = json.dumps(settings).encode()
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), _KEY: text})


def changed_settings(schema: pa.Schema, now: Mapping[str, Any], only_stored: bool = False) -> str:
    """Say which settings are not those that a schema was stored with; empty if all are.

    ``only_stored`` leaves out those that the schema says nothing of.
    """
    before: dict[str, Any] = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    names = before if only_stored else sorted({*before, *now})
    return ", ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    )
