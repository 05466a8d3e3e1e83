"""The state of a query: what its stateful operators remember, read from its checkpoint.

A name is imported when it is first asked for: Spark's types take a moment, and the settings of
``backend`` are needed by everybody.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beadline.state.disk import DiskUse, disk_use
    from beadline.state.metadata import StateOperator, Variable, read_operators
    from beadline.state.reading import read_state

__all__ = ["DiskUse", "StateOperator", "Variable", "disk_use", "read_operators", "read_state"]

_HOME = {
    "DiskUse": "disk",
    "StateOperator": "metadata",
    "Variable": "metadata",
    "disk_use": "disk",
    "read_operators": "metadata",
    "read_state": "reading",
}


def __getattr__(name: str) -> Any:
    """Import the module of a name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
