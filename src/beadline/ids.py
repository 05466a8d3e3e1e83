"""The identities of the protocol: frozen values, strict to build, lenient to parse.

A part's id is stored in outside systems (a file name, a transactional id, a ledger row), so that a
later process can tell its own leftovers from those of others. Building one checks every field;
parsing returns ``None`` for anything that is not Beadline's, because a foreign id must never break
recovery.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from beadline.errors import BadQuery

NAME_LENGTH_MAX = 60
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}\Z")
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,18})\Z")
_INCARNATION = re.compile(r"[0-9a-f]{32}\Z")
_SEPARATOR = "~"  # cannot occur in a name, and is harmless in file names and SQL strings
_PREFIX = "beadline"


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is valid for a query or a sink, else raise an error with the rule.

    >>> check_name("query", "orders-2")
    'orders-2'
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadQuery(
            f"{kind} name {name!r} cannot be used: names are 1 to {NAME_LENGTH_MAX} letters, "
            "digits, '_', '.' or '-', and begin with a letter or digit, because they become "
            "part of file names and transaction ids. Nothing was written."
        )
    return name


@dataclass(frozen=True)
class QueryId:
    """A query with its checkpoint: its name, and the incarnation created with the checkpoint."""

    name: str
    incarnation: str
    checkpoint: str

    def __post_init__(self) -> None:
        """Refuse values that could not be parsed back."""
        check_name("query", self.name)
        if not _INCARNATION.match(self.incarnation):
            raise ValueError(f"an incarnation is 32 hex digits, not {self.incarnation!r}")


@dataclass(frozen=True)
class EpochId:
    """One decided epoch: its number, which decision it is, and when it was decided.

    ``decided_at_ms`` is strictly increasing from epoch to epoch, so it can serve as a version.
    ``previous`` is the newest earlier epoch with rows that this sink must hold by now, -1 for none:
    a target that holds less was restored from an older backup (``sink.check_previous``).
    """

    query: QueryId
    number: int
    nonce: str
    decided_at_ms: int
    previous: int = -1


@dataclass(frozen=True)
class PartId:
    """One attempt of one task to prepare its share of one sink's rows in one epoch."""

    query: str
    incarnation: str
    sink: str
    generation: int
    epoch: int
    partition: int
    attempt: int

    def __post_init__(self) -> None:
        """Refuse values that could not be parsed back."""
        check_name("query", self.query)
        check_name("sink", self.sink)
        if not _INCARNATION.match(self.incarnation):
            raise ValueError(f"an incarnation is 32 hex digits, not {self.incarnation!r}")
        if min(self.generation, self.epoch, self.partition, self.attempt) < 0:
            raise ValueError(f"negative number in {self!r}")

    def __str__(self) -> str:
        """Return the text form, at most 230 characters of plain ASCII."""
        numbers = (self.generation, self.epoch, self.partition, self.attempt)
        return _SEPARATOR.join(
            (_PREFIX, self.query, self.incarnation, self.sink, *map(str, numbers))
        )

    @classmethod
    def parse(cls, text: str) -> PartId | None:
        """Read the text form; ``None`` for an id that is not Beadline's.

        >>> PartId.parse("another-applications-transaction") is None
        True
        """
        fields = text.split(_SEPARATOR)
        if len(fields) != 8 or fields[0] != _PREFIX or not all(map(_NUMBER.match, fields[4:])):
            return None
        try:
            generation, epoch, partition, attempt = (int(field) for field in fields[4:])
            return cls(fields[1], fields[2], fields[3], generation, epoch, partition, attempt)
        except (ValueError, BadQuery):
            return None

    def belongs_to(self, query: QueryId) -> bool:
        """Whether this incarnation of this query made this part."""
        return self.query == query.name and self.incarnation == query.incarnation
