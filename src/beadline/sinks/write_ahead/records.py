"""Lines with a checksum: what is written half, or changed afterwards, is not taken for the truth.

A line is eight hex digits, the CRC-32 of the rest, then a JSON object. The last line of a file that
is appended to may be torn by a crash: it was never acknowledged, so it is as if it were not there.
A bad line anywhere else is damage, and nobody guesses what it said.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from beadline.errors import CorruptRecord

Record = dict[str, Any]
VERSION = 1


def to_line(record: Record) -> bytes:
    """Return the stored form, with its newline."""
    text = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def from_line(line: bytes) -> Record | None:
    """Read a line without its newline; None if it is not whole."""
    if len(line) < 10 or line[8:9] != b" " or line[:8] != b"%08x" % zlib.crc32(line[9:]):
        return None
    try:
        record = json.loads(line[9:])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def read_lines(data: bytes, where: str) -> tuple[list[Record], int]:
    """Return the records, and how many bytes of the data they take; a torn end is left out."""
    records: list[Record] = []
    whole = 0
    while whole < len(data):
        end = data.find(b"\n", whole)
        record = from_line(data[whole:end]) if end >= 0 else None
        if record is None:
            if end >= 0 and end + 1 < len(data):
                raise corrupt(where, f"its line at byte {whole} is damaged")
            break
        records.append(record)
        whole = end + 1
    if records and records[0].get("version") != VERSION:
        raise corrupt(where, "it was written by another version of Beadline")
    return records, whole


def corrupt(where: str, what: str) -> CorruptRecord:
    """The error for a file of ours that cannot be trusted."""
    return CorruptRecord(
        f"{where} cannot be used: {what}. How far the receiver has been served stands in it, so "
        "nothing was delivered. Restore it; or, if rows may be delivered a second time, delete it "
        "and start again."
    )
