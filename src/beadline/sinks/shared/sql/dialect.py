"""What the shared core must know of one database: its names, and which columns take which rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from beadline.sinks.shared.sql.checks import Fit

if TYPE_CHECKING:
    import pyarrow as pa


def quoted(*names: str, quote: str = '"') -> str:
    """Return a name quoted for SQL, whatever it contains; two names are a schema and a table.

    >>> quoted("shop", '5" nails')
    '"shop"."5"" nails"'
    """
    return ".".join(f"{quote}{name.replace(quote, quote * 2)}{quote}" for name in names)


def listed(names: Iterable[str]) -> str:
    """Return names as a list, as SQL.

    >>> listed(["a", "b"])
    '"a", "b"'
    """
    return ", ".join(map(quoted, names))


class TableColumn(Protocol):
    """A column of a table, as far as all databases have it."""

    @property
    def name(self) -> str:
        """Its name, as the database spells it."""

    @property
    def declared(self) -> str:
        """Its declared type."""

    @property
    def generated(self) -> bool:
        """Whether the database computes it, so that no value may be given."""

    @property
    def required(self) -> bool:
        """Whether every row must give a value."""


C = TypeVar("C", bound=TableColumn)


class Dialect(ABC, Generic[C]):
    """One database; without state."""

    name: ClassVar[str]
    quote: ClassVar[str] = '"'
    has_case: ClassVar[bool] = True  # whether names that differ in case are different columns
    # The largest first, nulls last.
    descending: ClassVar[str] = "DESC"
    reserved: ClassVar[
        tuple[str, ...]
    ] = ()  # names of columns that Beadline uses in staging tables

    def fold(self, name: str) -> str:
        """Return the form in which the database compares names of columns."""
        return name

    def quoted(self, *names: str) -> str:
        """Return a name as SQL."""
        return quoted(*names, quote=self.quote)

    def listed(self, names: Iterable[str]) -> str:
        """Return names as a list."""
        return ", ".join(map(self.quoted, names))

    def name_fits(self, name: str) -> bool:
        """Whether this can be the name of a column."""
        return bool(name) and "\0" not in name

    @abstractmethod
    def declare(self, type_: pa.DataType, *, key: bool = False) -> str | None:
        """Return the column type that takes every value of an Arrow type; None if there is none."""

    @abstractmethod
    def fit(self, field: pa.Field, column: C) -> Fit | str:
        """Return how a column of the rows goes into one of the table, or why it does not."""

    def holds(self, type_: pa.DataType) -> bool:
        """Whether any column could hold values of this type."""
        return True

    def described(self, type_: pa.DataType) -> str:
        """Return what a column of the rows holds, for people."""
        return str(type_)

    def can_be_key(self, type_: pa.DataType) -> bool:
        """Whether equal values are always written alike."""
        return True

    def can_be_ordered(self, type_: pa.DataType) -> bool:
        """Whether client and server agree on which of two values is larger."""
        return True

    def can_be_added(self, type_: pa.DataType, column: C | None) -> bool:
        """Whether values can be summed; ``column`` is the table's, None if it is not known yet."""
        return True
