"""The settings that a part was staged under, written into its file.

A decided epoch may be finished by a later start, whose settings may be others. Under them its rows
would mean something else: one that was marked as deleted would be put. So the file itself says
under which settings its rows were taken, and the commit goes on with those only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from beadline.sinks.hbase.columns import Cells

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"beadline.settings"


def noted(batch: pa.RecordBatch, cells: Cells) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    metadata = {**(batch.schema.metadata or {}), _KEY: json.dumps(_settings(cells)).encode()}
    return batch.replace_schema_metadata(metadata)


def changed(schema: pa.Schema, cells: Cells) -> str:
    """Say which settings are not those that the schema was noted with; empty if all are."""
    before = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    now = _settings(cells)
    return ", ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )


def _settings(cells: Cells) -> dict[str, str | None]:
    """What decides over the bytes that are written; not the table, which a claim remembers."""
    columns = {f"columns[{name!r}]": cell.decode() for name, cell in cells.targets.items()}
    others = {"row_key": cells.row_key, "deleted": cells.deleted, "encoding": cells.encoding}
    return {**columns, **others}
