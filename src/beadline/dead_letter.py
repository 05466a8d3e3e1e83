"""Dead-letter records: rows that a sink refused, on their way to another sink in the same epoch.

They have the same columns for all sinks, so that one table or topic can take them all: query, sink,
epoch, part, the reason, and the row as JSON. They travel to the driver with the acks, and are
prepared into the dead-letter sink before the epoch is decided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink
from beadline.ids import QueryId
from beadline.sink import DEAD_LETTER_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_VALUE = "value"
_CHECKSUM_BYTES = 8


@dataclass(frozen=True)
class RefusedRow:
    """One row that a sink did not take; ``row`` is JSON."""

    sink: str
    part: int
    reason: str
    row: str


def schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of dead-letter records with these columns, or raise if one is unknown."""
    import pyarrow as pa

    kinds = dict.fromkeys((*DEAD_LETTER_COLUMNS, _VALUE), pa.string())
    kinds |= {"epoch": pa.int64(), "part": pa.int32()}
    unknown = [name for name in columns if name not in kinds]
    if unknown or not columns:
        raise BadSink(
            f"dead_letter_columns names {', '.join(unknown) or 'nothing'}; a dead-letter "
            f"record has {', '.join(kinds)}. Nothing was written."
        )
    return pa.schema([(name, kinds[name]) for name in columns])


def table(
    refused: Sequence[RefusedRow], query: QueryId, epoch: int, columns: Sequence[str]
) -> pa.Table:
    """Return the dead-letter records as the table that is passed to a dead-letter sink."""
    import pyarrow as pa

    common = {"query": query.name, "epoch": epoch}
    found = [{**common, **asdict(one)} for one in refused]
    if _VALUE in columns:
        for record in found:
            record[_VALUE] = _as_one(record)
    return pa.Table.from_pylist(found, schema(columns))


def checksum(refused: Sequence[RefusedRow]) -> int:
    """Return an order-insensitive content checksum, as a signed 64-bit number.

    It covers the rows, not the reasons, which are text for people and may change, nor the part
    numbers, which Spark may assign differently when an epoch is computed again.
    """
    total = 0
    for one in refused:
        digest = hashlib.blake2b(one.row.encode(), digest_size=_CHECKSUM_BYTES).digest()
        total += int.from_bytes(digest, "big")
    return (total + 2**63) % 2**64 - 2**63


def _as_one(record: dict[str, Any]) -> str:
    """Return all columns as one JSON object; the row is JSON already."""
    names = (name for name in DEAD_LETTER_COLUMNS if name != "row")
    head = json.dumps({name: record[name] for name in names}, ensure_ascii=False)
    return f'{head[:-1]}, "row": {record["row"]}}}'
