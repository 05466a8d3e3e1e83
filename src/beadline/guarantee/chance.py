"""A mark for functions whose result is known to vary; ``spark/python_code.py`` looks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ByChance:
    """A function whose result is known to vary from call to call: it reads what others write.

    ``name`` is its name in a report.
    """

    function: Callable[..., Any]
    name: str

    def __call__(self, *given: Any) -> Any:
        """Call it."""
        return self.function(*given)
