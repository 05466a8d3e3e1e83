"""Which settings of a part decide over its bytes, and which of them have changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.sink.staged import settings_in, with_settings
from beadline.sinks.hbase.columns import Cells

if TYPE_CHECKING:
    import pyarrow as pa


def noted(batch: pa.RecordBatch, cells: Cells) -> pa.RecordBatch:
    """Return the batch with the settings in its schema, which is stored with it."""
    return with_settings(batch, _settings(cells))


def changed(schema: pa.Schema, cells: Cells) -> str:
    """Say which settings are not those that the schema was noted with; empty if all are."""
    before, now = settings_in(schema), _settings(cells)
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
