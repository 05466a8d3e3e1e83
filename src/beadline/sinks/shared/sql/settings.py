"""What a user asks for a table: how rows are written into it, and what is wrong with the request.

``append`` adds rows. ``upsert`` replaces the row with the same key; where an epoch holds a key
twice, the row with the largest ``order_by`` counts, and a row whose column ``deleted`` is true
deletes its key. ``add`` adds every other column to what is there under the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from beadline.sink import NOTHING_WRITTEN, BadSink
from beadline.sinks.shared.sql.dialect import Dialect

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["append", "upsert", "add"]


def names_of(key: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns of ``key=``, which may be one name."""
    return (key,) if isinstance(key, str) else tuple(key)


@dataclass(frozen=True)
class TableSettings:
    """The settings of a sink that say what is to become of rows; ``where`` is for people."""

    dialect: Dialect[Any]
    where: str
    table: str
    mode: str
    key: tuple[str, ...]
    order_by: str | None = None
    deleted: str | None = None

    def check(self) -> None:
        """Refuse settings that are wrong for every database."""
        if self.mode not in get_args(Mode):
            raise self.bad(f"mode {self.mode!r} is not append, upsert or add.")
        if (self.mode == "append") == bool(self.key):
            needs = 'needs the columns of a key, key=("id",) for example'
            raise self.bad(f"mode {self.mode!r} {'takes no key' if self.key else needs}.")
        if self.mode != "upsert" and (self.order_by is not None or self.deleted is not None):
            raise self.bad("order_by= and deleted= are for mode='upsert'.")
        if self.deleted is not None and self.deleted in (*self.key, self.order_by):
            raise self.bad("deleted= cannot be the key or the order.")

    @property
    def staged(self) -> dict[str, Any]:
        """What says how staged rows are written, so that no other start writes them differently.

        Without ``order_by``: another one is the way out where two rows of a key are equal in it.
        """
        return {"mode": self.mode, "key": list(self.key), "deleted": self.deleted}

    def bad(self, what: str) -> BadSink:
        """Return an error that is raised before anything is written."""
        return BadSink(f"{self.where}: {what} {NOTHING_WRITTEN}")

    def is_key(self, name: str) -> bool:
        """Whether a column is in the key."""
        return self.dialect.fold(name) in map(self.dialect.fold, self.key)

    def check_rows(self, schema: pa.Schema) -> None:
        """Raise unless rows of this schema can be written this way, whatever the table is."""
        self._check_names(schema)
        for setting, names in (
            ("key", self.key),
            ("order_by", (self.order_by,)),
            ("deleted", (self.deleted,)),
        ):
            for name in names:
                if name is not None and name not in schema.names:
                    raise self.bad(
                        f"column {name!r} of {setting}= is not in the rows, which have "
                        f"{', '.join(schema.names)}."
                    )
        types = {field.name: field.type for field in schema}
        for name in self.key:
            if not self.dialect.can_be_key(types[name]):
                raise self.bad(
                    f"column {name!r} holds {self.dialect.described(types[name])}, which cannot "
                    "be a key: equal values may be written differently."
                )
        if self.order_by is not None and not self.dialect.can_be_ordered(types[self.order_by]):
            raise self.bad(
                f"order_by column {self.order_by!r} must hold numbers, dates or timestamps."
            )
        if self.deleted is not None and str(types[self.deleted]) != "bool":
            raise self.bad(
                f"column {self.deleted!r} marks deletes, so it must be boolean, not "
                f"{types[self.deleted]}."
            )
        if self.mode == "add":
            self._check_added(types)

    def _check_names(self, schema: pa.Schema) -> None:
        if not len(schema):
            raise self.bad("the rows have no columns.")
        dialect = self.dialect
        seen: set[str] = set()
        for field in schema:
            name = dialect.fold(field.name)
            if not dialect.name_fits(field.name):
                raise self.bad(f"{field.name!r} cannot name a column.")
            if name in dialect.reserved:
                raise self.bad(
                    f"{field.name!r} is a name that Beadline uses. Rename the column in rows=."
                )
            if name in seen:
                case = "" if dialect.has_case else f" ({dialect.name} ignores case there)"
                raise self.bad(f"two columns are called {field.name!r}{case}. Rename one in rows=.")
            seen.add(name)
            if not dialect.holds(field.type):
                raise self.bad(
                    f"column {field.name!r} is {field.type}, which {dialect.name} cannot hold. "
                    "Take it apart or cast it in rows=, to_json() for example."
                )

    def _check_added(self, types: dict[str, pa.DataType]) -> None:
        values = [name for name in types if not self.is_key(name)]
        if not values:
            raise self.bad("there is no column to add besides the key.")
        for name in values:
            if not self.dialect.can_be_added(types[name], None):
                raise self.not_added(name, self.dialect.described(types[name]))

    def not_added(self, name: str, what: str) -> BadSink:
        """Return the error of a column that cannot be added."""
        return self.bad(
            f"column {name!r} holds {what}, which cannot be added. Make it part of the key, or "
            "leave it out in rows=."
        )
