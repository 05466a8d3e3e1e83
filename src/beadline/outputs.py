"""Several outputs of one operator, written to different sinks in the same epoch.

The frame has a column for each output, all but one of them null in each row; ``.to(sink,
output="late")`` selects the rows of one. It stays a single frame, computed and decided as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.errors import BadQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAIN = "main"
LATE = "late"


@dataclass(frozen=True)
class Outputs:
    """A streaming frame with several outputs; pass it to ``exactly_once`` instead of a frame."""

    frame: DataFrame
    names: tuple[str, ...] = (MAIN,)
    plain: bool = False  # there is one output, and its columns are the frame's own

    @staticmethod
    def of(frame: DataFrame) -> Outputs:
        """Return a frame as the only output."""
        return Outputs(frame, plain=True)

    def rows(self, name: str = MAIN) -> Callable[[DataFrame], DataFrame] | None:
        """Return a function that selects an output's rows of an epoch; None if it is all rows."""
        if name not in self.names:
            known = ", ".join(repr(one) for one in self.names)
            raise BadQuery(f"there is no output {name!r}; there are {known}. Nothing was written.")
        return None if self.plain else _Picked(name)

    def streaming(self, name: str = MAIN) -> DataFrame:
        """Return the rows of one output as a streaming frame of its own."""
        picked = self.rows(name)
        return self.frame if picked is None else picked(self.frame)


@dataclass(frozen=True)
class _Picked:
    name: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        column = frame[self.name]
        return frame.where(column.isNotNull()).select(f"`{self.name}`.*")
