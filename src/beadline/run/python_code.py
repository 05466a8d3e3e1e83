"""Looking into Python functions for what gives another answer each time: clocks and dice.

A hint, not a proof: it follows names through a function's own code, what it encloses and the
functions of the job that it calls, and cannot see through a library.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_ALL = frozenset({"*"})
# By module: the names that are different at every call.
CHANCE: dict[str, frozenset[str]] = {
    "datetime": frozenset({"now", "today", "utcnow"}),
    "numpy.random": _ALL,
    "os": frozenset({"getpid", "urandom"}),
    "random": _ALL,
    "secrets": _ALL,
    "time": frozenset({"monotonic", "monotonic_ns", "perf_counter", "time", "time_ns"}),
    "uuid": frozenset({"uuid1", "uuid4"}),
}
_DEPTH_MAX = 5
_UNKNOWN = object()


def calls_by_chance(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the dotted names of what a function uses by which it may answer differently.

    >>> import time
    >>> calls_by_chance(lambda row: row + time.time())
    ('time.time',)
    """
    found: dict[str, None] = {}
    _look(function, found, set(), 0)
    return tuple(found)


def _look(function: Any, found: dict[str, None], seen: set[int], depth: int) -> None:
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or id(function) in seen or depth > _DEPTH_MAX:
        return
    if str(function.__module__).partition(".")[0] in sys.stdlib_module_names:
        return
    seen.add(id(function))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    enclosed = {name: _content(cell) for name, cell in cells}
    for code in _codes(function.__code__):
        for value in _used(code, {**function.__globals__, **enclosed}, found):
            _look(value, found, seen, depth + 1)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _UNKNOWN


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _used(code: CodeType, names: dict[str, Any], found: dict[str, None]) -> Iterator[Any]:
    """Follow ``a.b.c`` from what ``a`` is; note what is chance, yield what else is reached."""
    local: dict[str, Any] = {}
    module: Any = _UNKNOWN
    value: Any = _UNKNOWN
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            value = names.get(name, _UNKNOWN)
        elif step.opname.startswith("LOAD_FAST"):
            value = local.get(name, _UNKNOWN)
        elif step.opname == "IMPORT_NAME":
            value = module = _imported(name)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            source = module if step.opname == "IMPORT_FROM" else value
            value = _attribute(source, name)
            _note(source, name, found)
        elif step.opname.startswith("STORE_FAST"):
            local[name] = value
            continue
        else:
            continue
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            _note_itself(value, found)
        if value is not _UNKNOWN:
            yield value


def _imported(name: str) -> Any:
    """The module, if it is one that matters; nothing else is imported for this."""
    import importlib

    known = any(module == name or module.startswith(f"{name}.") for module in CHANCE)
    return importlib.import_module(name) if known else _UNKNOWN


def _attribute(value: Any, name: str) -> Any:
    if value is _UNKNOWN or not isinstance(value, ModuleType | type):
        return _UNKNOWN
    return getattr(value, name, _UNKNOWN)


def _note(source: Any, name: str, found: dict[str, None]) -> None:
    if isinstance(source, ModuleType):
        module = source.__name__
    elif isinstance(source, type):
        module = source.__module__
    else:
        return
    known = CHANCE.get(module, frozenset())
    if name in known or (known == _ALL and callable(getattr(source, name, None))):
        owner = f"{source.__name__}." if isinstance(source, type) else ""
        found[f"{module}.{owner}{name}"] = None


def _note_itself(value: Any, found: dict[str, None]) -> None:
    """What was imported by its own name: ``from time import time``."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, BuiltinFunctionType) or type(owner).__module__ == "random":
        module = getattr(value, "__module__", None) or type(owner).__module__
        if isinstance(owner, type):
            module = owner.__module__
        name = getattr(value, "__name__", "")
        known = CHANCE.get(str(module), frozenset())
        if name in known or (known == _ALL and name):
            found[f"{module}.{name}"] = None
