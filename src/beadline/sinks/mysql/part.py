"""``MySqlPart``: what finishes a prepared part from anywhere, and how parts are named."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from beadline.sink import Committable, Json, PartId, Prepared, PrepareFailed, QueryId

STAGE = "_beadline_stage_"
_XID = re.compile(r"beadline~([0-9a-f]{20})~([0-9a-z]+)~([0-9a-z]+)~([0-9a-z]+)~([0-9a-z]+)\Z")
_XID_BYTES_MAX = 64
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class MySqlPart(Committable):
    """A staging table, or a prepared XA transaction, and how many rows are in it.

    A staging table has the settings for which it was filled; version 1 had none. The rows of an XA
    transaction are in the table already.
    """

    version: ClassVar[int] = 2

    how: str  # "staged" or "xa"
    name: str
    rows: int
    mode: str = ""
    key: tuple[str, ...] = ()
    deleted: str | None = None

    @classmethod
    def upgrade(cls, version: int, fields: Json) -> Json:
        """Version 1 stored no settings."""
        return fields if version == 1 else super().upgrade(version, fields)


MySqlParts = Sequence[Prepared[MySqlPart]]


def stage_name(id_: PartId) -> str:
    """The staging table of a part; its comment is the id, this is only short enough for a name."""
    return STAGE + hashlib.sha256(str(id_).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class Xid:
    """The id of an XA transaction: of 64 bytes, with a branch of 64 bytes."""

    transaction: str
    branch: str

    @classmethod
    def of(cls, id_: PartId) -> Xid:
        """The part's own: query and incarnation as a digest, the numbers, and the sink's name."""
        numbers = (id_.generation, id_.epoch, id_.partition, id_.attempt)
        owner = _digest(id_.query, id_.incarnation)
        transaction = "~".join(("beadline", owner, *map(_short, numbers)))
        if len(transaction) > _XID_BYTES_MAX:
            raise PrepareFailed(f"the numbers of part {id_} do not fit into an XA id; use staging")
        return cls(transaction, id_.sink)

    @classmethod
    def parse(cls, data: bytes, transaction_bytes: int, query: QueryId) -> PartId | None:
        """The part of this query that ``XA RECOVER`` shows; None for others'."""
        try:
            text, sink = data[:transaction_bytes].decode("ascii"), data[transaction_bytes:].decode()
        except UnicodeDecodeError:
            return None
        found = _XID.match(text)
        if found is None or found[1] != _digest(query.name, query.incarnation):
            return None
        numbers = [str(int(number, len(_DIGITS))) for number in found.groups()[1:]]
        return PartId.parse("~".join(("beadline", query.name, query.incarnation, sink, *numbers)))

    @property
    def sql(self) -> str:
        """As statements take it; plain letters, digits and ``~_.-``, so there is nothing to quote.

        The last number is the format: it marks it as Beadline's.
        """
        return f"'{self.transaction}','{self.branch}',{XA_FORMAT}"


XA_FORMAT = 48813


def _digest(query: str, incarnation: str) -> str:
    return hashlib.sha256(f"{query}~{incarnation}".encode()).hexdigest()[:20]


def _short(number: int) -> str:
    digits = ""
    while number or not digits:
        number, last = divmod(number, len(_DIGITS))
        digits = _DIGITS[last] + digits
    return digits
