"""Finds what makes Python functions non-deterministic: clocks and random numbers.

A hint, not a proof: it follows names through a function's own code, its closure and the functions
of the job that it calls, and cannot see into a library.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from beadline.guarantee.chance import ByChance

_ALL = frozenset({"*"})
# By module: the functions whose result differs at every call.
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
_LIBRARIES = frozenset({"numpy", "pandas", "pyarrow", "pyspark"})
_IN_C = (BuiltinFunctionType, ClassMethodDescriptorType, MethodDescriptorType)
_UNKNOWN = object()


def calls_by_chance(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the dotted names of the non-deterministic functions that a function uses.

    >>> import time
    >>> calls_by_chance(lambda row: row + time.time())
    ('time.time',)
    """
    found: dict[str, None] = {}
    _note_itself(function, found)
    _look(function, found, set(), 0)
    return tuple(found)


def can_be_read(function: Callable[..., Any]) -> bool:
    """Whether there is code to inspect; what comes with Python is known without it.

    >>> can_be_read(lambda row: row), can_be_read(len), can_be_read(functools.partial(max, 0))
    (True, True, True)
    """
    if isinstance(function, FunctionType):
        return True
    inner = list(_wrapped(function))
    if inner:
        return can_be_read(inner[0])
    if isinstance(function, type):
        return _of_python(function.__module__)
    return isinstance(function, _IN_C) and _of_python(_home(function))


def code_held_by(value: Any) -> Iterator[Callable[..., Any]]:
    """Yield every method of an object, and of the objects and functions that it holds.

    For what is sent to the workers as an object, such as a stateful processor: the library decides
    which of its methods are called, and with what.
    """
    yield from _held(value, set(), 0)


def _held(value: Any, seen: set[int], depth: int) -> Iterator[Callable[..., Any]]:
    if id(value) in seen or depth > _DEPTH_MAX:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | functools.partial):
        yield value
        return
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    elif not isinstance(value, type | ModuleType) and not _of_a_library(type(value).__module__):
        for class_ in type(value).__mro__:
            if not _of_a_library(class_.__module__) and not _is_own(class_.__module__):
                yield from _methods(class_)
        inner = list(getattr(value, "__dict__", {}).values())
    for one in inner:
        yield from _held(one, seen, depth + 1)


def _methods(class_: type) -> Iterator[FunctionType]:
    for found in vars(class_).values():
        within = getattr(found, "__func__", None) or getattr(found, "fget", None)
        yield from (one for one in (found, within) if isinstance(one, FunctionType))


def _of_a_library(module: Any) -> bool:
    return _of_python(module) or str(module).partition(".")[0] in _LIBRARIES


def _is_own(module: Any) -> bool:
    return str(module).partition(".")[0] == "beadline"


def _home(value: Any) -> Any:
    """The module of an object written in C: its own, or that of the object it belongs to."""
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        return getattr(value, "__module__", None)
    return (owner if isinstance(owner, type) else type(owner)).__module__


def _wrapped(value: Any) -> Iterator[Any]:
    """Yield what a callable that is not a plain function calls; nothing is run."""
    if isinstance(value, MethodType):
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield value.func
        yield from (given for given in (*value.args, *value.keywords.values()) if callable(given))
    elif isinstance(value, type):
        yield from (v for v in map(vars(value).get, ("__new__", "__init__")) if v is not None)
    elif not isinstance(value, FunctionType | ModuleType | BuiltinFunctionType):
        for holder, name in ((value, "__wrapped__"), (type(value), "__call__")):
            found = getattr_static(holder, name, None)
            if isinstance(found, FunctionType | functools.partial | MethodType):
                yield found
                return


def _of_python(module: Any) -> bool:
    return str(module).partition(".")[0] in sys.stdlib_module_names


def _look(value: Any, found: dict[str, None], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth > _DEPTH_MAX:
        return
    if not isinstance(value, FunctionType):
        if isinstance(value, type) and depth:
            return  # named, not called, as far as is known
        seen.add(id(value))
        if isinstance(value, ByChance):
            found[value.name] = None
        for inner in _wrapped(value):
            _note_itself(inner, found)
            _look(inner, found, seen, depth + 1)
        return
    if _of_python(value.__module__):
        return
    seen.add(id(value))
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
    enclosed = {name: _content(cell) for name, cell in cells}
    for code in _codes(value.__code__):
        for used in _used(code, {**value.__globals__, **enclosed}, found):
            _look(used, found, seen, depth + 1)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _UNKNOWN


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _used(code: CodeType, names: dict[str, Any], found: dict[str, None]) -> Iterator[Any]:
    """Follow ``a.b.c`` from the value of ``a``; note what is non-deterministic, yield the rest."""
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
    """The module, if it is in the table; nothing else is imported for this."""
    import importlib

    known = any(module == name or module.startswith(f"{name}.") for module in CHANCE)
    try:
        return importlib.import_module(name) if known else _UNKNOWN
    except Exception:  # noqa: BLE001 (it may exist on the workers only, or fail here in any way)
        return _UNKNOWN


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
    """The function that was imported by name: ``from time import time``."""
    if not isinstance(value, BuiltinFunctionType | FunctionType | MethodType):
        return
    owner = getattr(value, "__self__", None)
    module = str(getattr(value, "__module__", None) or type(owner).__module__)
    if isinstance(owner, type):
        module = owner.__module__
    if module.startswith("numpy.random."):
        module = "numpy.random"
    known = CHANCE.get(module, frozenset())
    if value.__name__ in known or known == _ALL:
        found[f"{module}.{value.__name__}"] = None
