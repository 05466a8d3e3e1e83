"""The small versioned record with which any process can finish a prepared part.

It is stored as JSON, never pickle: a decision must be readable by the next version of the
program, and by a person at three in the morning. A committable class is a frozen dataclass of
plain values. When its fields change, raise ``version`` and override ``upgrade``, which is passed
the old version's fields; golden files in the tests keep every old version readable.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound="Committable")

Json = dict[str, Any]


@dataclass(frozen=True)
class Committable:
    """Subclass it with your fields; strings, numbers, booleans, None and tuples of them."""

    version: ClassVar[int] = 1

    def to_json(self) -> Json:
        """Return the stored form."""
        return {"version": self.version, **dataclasses.asdict(self)}

    @property
    def rows_held(self) -> int | None:
        """How many rows the outside system holds, counted there; None if that is not known.

        Before the epoch is decided, this is compared with the rows that were passed to ``prepare``,
        less those refused (rule 26).
        """
        return None

    @property
    def instance(self) -> str:
        """Which instance of the target the part was written to; empty if that is not known.

        Before the epoch is decided, this is compared with ``Capabilities.instance``.
        """
        return ""

    def is_same(self, other: Committable) -> bool:
        """Whether both identify the same object in the outside system.

        A sweep of orphans also uses this to spare decided parts. Override it if some field is not
        part of that identity.
        """
        return self == other

    @classmethod
    def from_json(cls: type[T], stored: Json) -> T:
        """Read the stored form of this or any older version."""
        fields = dict(stored)
        version = fields.pop("version")
        if version > cls.version:
            raise ValueError(
                f"{cls.__name__} version {version} was written by a newer Beadline, "
                f"which this one (up to version {cls.version}) cannot read"
            )
        if version < cls.version:
            fields = cls.upgrade(version, fields)
        return cls(**{name: _tuples(value) for name, value in fields.items()})

    @classmethod
    def upgrade(cls, version: int, fields: Json) -> Json:
        """Turn an older version's fields into this version's."""
        raise ValueError(f"{cls.__name__} does not know its version {version}")


def _tuples(value: Any) -> Any:
    """Return lists as tuples: JSON has only lists, a frozen value holds tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
