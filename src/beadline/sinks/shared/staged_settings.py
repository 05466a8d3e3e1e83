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


def settings_in(schema: pa.Schema) -> dict[str, Any]:
    """Return the settings that a schema was stored with; none if it says nothing of them."""
    found: dict[str, Any] = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    return found
