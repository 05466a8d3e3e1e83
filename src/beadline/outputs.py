"""Several outputs of one operator, which go to different sinks in the same epoch.

A frame has a column for each output, all but one of them null in each row; ``.to(sink,
output="late")`` picks the rows of one. What a query computes and decides stays one frame.
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
    """A streaming frame with several outputs; given to ``exactly_once`` in place of a frame."""

    frame: DataFrame
    names: tuple[str, ...] = (MAIN,)
    plain: bool = False  # the only output, whose columns are the frame's own

    @staticmethod
    def of(frame: DataFrame) -> Outputs:
        """Return a frame that is the only output."""
        return Outputs(frame, plain=True)

    def rows(self, name: str = MAIN) -> Callable[[DataFrame], DataFrame] | None:
        """Return what picks one output out of an epoch's rows; None if it is all of them."""
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
