"""What a prepared part leaves in PostgreSQL, and how it is recognized after a crash.

Two forms::

    a prepared transaction   its global id is the part's id and a nonce
    a staging table          its name is a hash; its comment is the part's id; columns that only
                             order or delete and are not in the table have a comment as well

The nonce is there because Spark numbers the attempts of a retried stage from 0 again: two tasks
may prepare the same part id, and what the driver decided is one of the two, never "either".
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from beadline.sink import Committable, Json, PartId, Prepared, QueryId

PREPARED = "prepared"
STAGED = "staged"
NOT_KEPT = "not kept"
STAGE_PREFIX = "_beadline_stage_"
GID_BYTES_MAX = 199  # PostgreSQL's limit
_SEPARATOR = "~"
_NO_NAME = "+"  # in place of a query's name, where the id would be too long
_NONCE_DIGITS = 8


@dataclass(frozen=True)
class PostgresPart(Committable):
    """Where a part is: ``how`` says in which form, then the schema, and its name.

    A staging table has the settings for which it was filled; version 1 had none. The rows of a
    prepared transaction are in the table already.
    """

    version: ClassVar[int] = 2

    how: str
    schema: str
    name: str
    mode: str = ""
    key: tuple[str, ...] = ()
    deleted: str | None = None

    @classmethod
    def upgrade(cls, version: int, fields: Json) -> Json:
        """Version 1 called ``how`` ``way``, and stored no settings."""
        if version != 1:
            return super().upgrade(version, fields)
        return {"how": fields["way"], "schema": fields["schema"], "name": fields["name"]}

    def is_same(self, other: Committable) -> bool:
        """A transaction belongs to the whole database: its id does not say for which schema."""
        if not isinstance(other, PostgresPart) or (self.how, self.name) != (other.how, other.name):
            return False
        return self.how == PREPARED or self.schema == other.schema


PostgresParts = Sequence[Prepared[PostgresPart]]


def new_nonce() -> str:
    """Return what tells two tasks apart that prepare the same part."""
    return uuid.uuid4().hex[:_NONCE_DIGITS]


def stage_name(id_: PartId, nonce: str) -> str:
    """Return the name of a part's staging table."""
    digest = hashlib.sha256(f"{id_}{_SEPARATOR}{nonce}".encode()).hexdigest()
    return f"{STAGE_PREFIX}{digest[:24]}"


def global_id(id_: PartId, nonce: str) -> str:
    """Return the global id of a part's prepared transaction, at most 199 bytes.

    Where the names are so long that it would not fit, the query's is left out: its incarnation is
    unique, and a query that looks for its own parts knows its name.
    """
    whole = f"{id_}{_SEPARATOR}{nonce}"
    if len(whole) <= GID_BYTES_MAX:
        return whole
    prefix, _, *rest = whole.split(_SEPARATOR)
    return _SEPARATOR.join((prefix, _NO_NAME, *rest))


def part_of(gid: str, query: QueryId) -> PartId | None:
    """Return the part of this query that a global id names; ``None`` for others'."""
    text, _, nonce = gid.rpartition(_SEPARATOR)
    if len(nonce) != _NONCE_DIGITS:
        return None
    prefix, separator, rest = text.partition(f"{_SEPARATOR}{_NO_NAME}{_SEPARATOR}")
    if separator:
        text = _SEPARATOR.join((prefix, query.name, rest))
    id_ = PartId.parse(text)
    return id_ if id_ is not None and id_.belongs_to(query) else None
