"""A mark for functions that are known to answer differently; ``spark/python_code.py`` sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ByChance:
    """A function of which it is known that it may answer differently: it reads what others write.

    ``name`` is what it is called in a report.
    """

    function: Callable[..., Any]
    name: str

    def __call__(self, *given: Any) -> Any:
        """Call it."""
        return self.function(*given)
