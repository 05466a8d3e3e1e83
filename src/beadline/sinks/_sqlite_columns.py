"""How Arrow columns become SQLite's values, and whether a table can take them.

SQLite stores any value in any column, but bends it on the way in to what the column was declared
as: the text '007' becomes 7 in an INTEGER column, a decimal becomes a float in a DECIMAL one. A
column that would bend its values is refused before the first row.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink

if TYPE_CHECKING:
    import pyarrow as pa


class Kind(enum.Enum):
    """What SQLite is given for a column: how it is declared, and where it is kept unbent."""

    INTEGER = ("INTEGER", "INTEGER NUMERIC BLOB INT ANY")
    FLOAT = ("REAL", "REAL NUMERIC BLOB ANY")
    BOOLEAN = ("INTEGER", "INTEGER NUMERIC BLOB INT ANY")  # after INTEGER: an alias if they agree
    TEXT = ("TEXT", "TEXT BLOB ANY")
    DECIMAL = ("TEXT", "TEXT BLOB ANY")
    TIME = ("TEXT", "TEXT NUMERIC BLOB ANY")  # ISO text never looks like a number
    BINARY = ("BLOB", "INTEGER REAL NUMERIC TEXT BLOB ANY")

    def __init__(self, declared: str, fits: str) -> None:
        self.declared = declared
        self.fits = frozenset(fits.split())
