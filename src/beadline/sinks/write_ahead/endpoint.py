"""What a user writes: a function that is given a ``Delivery``, or an ``Endpoint``.

Returning nothing says that the rows are accepted. Everything else is said by raising::

    TryAgain, ConnectionError, TimeoutError    it is not known whether they arrived: tried again
    AlreadyTaken                               they were accepted before: the endpoint knows the ids
    PermissionError                            this user may not: the query stops until it may
    Rejected, or anything else                 they were not accepted: the query stops there
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from beadline.sink import Rejected

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "UNSURE",
    "AlreadyTaken",
    "Deliver",
    "Delivery",
    "Endpoint",
    "FunctionEndpoint",
    "Rejected",
    "TryAgain",
]

# With these it is unknown whether the rows arrived before the connection broke.
UNSURE = (ConnectionError, TimeoutError)


class TryAgain(Exception):
    """The endpoint is down, busy, or did not answer; ``after_s`` is how long it asks to wait."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class AlreadyTaken(Exception):
    """The endpoint has these rows already; with ``honours_ids`` that is a success."""


@dataclass(frozen=True)
class Delivery:
    """Rows that follow one another in one part of one epoch.

    ``part`` is the partition's number, ``first_row`` the number of the first row within the part,
    from 0. ``mark`` is empty, but for ``at_least_once``: there an epoch that is redelivered may
    have its rows in another order, and other content must not go by the same id.

    >>> import pyarrow as pa
    >>> table = pa.table({"word": ["tea", "salt"]})
    >>> delivery = Delivery("orders", "c0de" * 8, "shop", 7, 0, 500, table)
    >>> delivery.rows
    [{'word': 'tea'}, {'word': 'salt'}]
    >>> delivery.ids
    ['orders~c0dec0dec0dec0dec0dec0dec0dec0de~shop~7~0~500', \
'orders~c0dec0dec0dec0dec0dec0dec0dec0de~shop~7~0~501']
    """

    query: str
    incarnation: str
    sink: str
    epoch: int
    part: int
    first_row: int
    table: pa.Table
    mark: str = ""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        """Where the rows belong, not what is in them."""
        return f"Delivery({self.where})"

    @property
    def where(self) -> str:
        """The rows' place, for people."""
        last = self.first_row + len(self) - 1
        return f"epoch {self.epoch}, part {self.part}, rows {self.first_row} to {last}"

    @property
    def id(self) -> str:
        """The batch's id: that of its first row, and how many rows there are."""
        return f"{self._prefix}{self.first_row}+{len(self)}"

    @cached_property
    def ids(self) -> list[str]:
        """An id per row, the same whenever and in whatever batches the row is delivered."""
        return [f"{self._prefix}{self.first_row + number}" for number in range(len(self))]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries; ``table`` has them as Arrow, which costs nothing."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found

    @property
    def _prefix(self) -> str:
        # "~" cannot occur in names, and may stand in an HTTP header.
        part = f"{self.part}-{self.mark}" if self.mark else str(self.part)
        return "~".join((self.query, self.incarnation, self.sink, str(self.epoch), part, ""))


Deliver = Callable[[Delivery], None]


class Endpoint(ABC):
    """Something that takes rows, with what it needs for that: a connection, a session.

    It is pickled with the sink, so it holds settings only: connect in ``open``, and leave the
    connection out of the pickle (``__getstate__``). It is used in one process, the driver. With
    ``parallel`` above 1, ``deliver`` is called by several threads at once.
    """

    @property
    def name(self) -> str:
        """A name for it, unless the sink is given one; never with a secret in it."""
        return ""

    @property
    def target(self) -> str:
        """Where the rows go, for people, and the same as long as it is the same place."""
        return ""

    def check(self) -> None:  # noqa: B027 (may be left out)
        """Before anything is written: raise ``BadSink`` if it cannot be right."""

    def open(self) -> None:  # noqa: B027 (may be left out)
        """Before the first batch of an epoch, and before a batch is tried again."""

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Send the rows, all of them, or raise. Return only when they are safe there."""

    def close(self) -> None:  # noqa: B027 (may be left out)
        """After the last batch, and after one that is to be tried again."""


@dataclass(frozen=True)
class FunctionEndpoint(Endpoint):
    """A user's function."""

    function: Deliver

    @property
    def name(self) -> str:
        """What the function is called; nothing for an object that can only be called."""
        return str(getattr(self.function, "__qualname__", ""))

    def deliver(self, delivery: Delivery) -> None:
        """Call it."""
        return self.function(delivery)
