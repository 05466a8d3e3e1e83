"""Job files, which the command line starts: Python with ``def job(spark) -> Stream``, or TOML.

Both come out as ``PlannedQuery``: one of a Python file, one or more of a TOML file, which
``beadline.jobs`` reads. The rest here is about Python.

The file describes and does not start, so that the same job can be run, looked at and tested. What
can be wrong with it is found in three steps, all before anything is written: ``open_job`` without
Spark, ``load_job`` with Spark running (a UDF at the top of a file needs that), and
``build_stream``. Defaults may stand in the file in capitals; the command line's options win::

    CHECKPOINT = "hdfs://…/orders"      where the query's checkpoint is
    EVERY = "1 second"                  or AVAILABLE_NOW = True
    OUTPUT_MODE = "update"              for aggregations
    CONF = {"spark.driver.memory": "2g"}    read before the file is run, so plain values only
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from beadline.decisions import KEEP_DEFAULT
from beadline.errors import NOTHING_WRITTEN, BeadlineError, UsageError
from beadline.jobs.restart import NoRestart, Strategy
from beadline.stream import StartSettings, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXAMPLE = "def job(spark): return exactly_once(frame, name=...).to(sink)"
_MODULE = "beadline_job"
_REASON_LENGTH_MAX = 500
# The defaults that a job file may hold, and what they must be.
_DEFAULTS: dict[str, type] = {
    "CHECKPOINT": str,
    "EVERY": str,
    "AVAILABLE_NOW": bool,
    "OUTPUT_MODE": str,
}


@dataclass(frozen=True)
class PlannedQuery:
    """One query of a job: the stream, unstarted, and what to start it with."""

    stream: Stream
    where: str  # in which file, and there
    checkpoint: str | None = None
    every: str | None = None
    available_now: bool = False
    output_mode: str = "append"
    drop: tuple[str, ...] = ()
    keep: int = KEEP_DEFAULT
    options: dict[str, str] = field(default_factory=dict, repr=False)  # may hold a secret


@dataclass(frozen=True)
class JobFile:
    """A job file that can be run: where it is, and what Spark must be started with."""

    path: Path
    conf: dict[str, Any] = field(default_factory=dict)
    connectors: tuple[str, ...] = ()
    restart: Strategy = field(default_factory=NoRestart)
    # The first query of which it is certain, before the file is run, that it names no checkpoint.
    no_checkpoint: str | None = None

    @property
    def several(self) -> bool:
        """Whether it has more than one query."""
        return False

    def load(self) -> Job:
        """Return the only query of the job, to be built; raises with what to put right."""
        return _load_python(self)

    def plan(self, spark: SparkSession) -> list[PlannedQuery]:
        """Return the queries of the job, unstarted; raises with what to put right."""
        job = self.load()
        return [
            PlannedQuery(
                stream=build_stream(job, spark),
                where=str(self.path),
                checkpoint=job.checkpoint,
                every=job.every,
                available_now=job.available_now,
                output_mode=job.output_mode,
            )
        ]

    def redact(self, text: str) -> str:
        """Take what is secret out of a text; nothing of a Python file is known to be."""
        return text


def check_all(plans: list[PlannedQuery]) -> None:
    """Ask of every query what its start will ask, before another is started; writes nothing."""
    from beadline.spark.analyze import check_start

    for plan in plans:
        settings = StartSettings(
            str(plan.checkpoint), plan.every, plan.available_now, plan.output_mode, (), plan.keep,
            plan.options,
        )  # fmt: skip
        check_start(plan.stream, settings)


@dataclass(frozen=True)
class Job:
    """A job file that was run: its function, and the defaults that stand in it."""

    path: Path
    build: Callable[[SparkSession], Any]
    checkpoint: str | None = None
    every: str | None = None
    available_now: bool = False
    output_mode: str = "append"


def open_job(path: str | os.PathLike[str]) -> JobFile:
    """Look at a job file without running it; raises ``UsageError`` with what to put right."""
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise UsageError(
            f"job file {file} {what}. Give a TOML file, or a Python file with: {_EXAMPLE}. "
            f"{NOTHING_WRITTEN}"
        )
    if file.suffix == ".toml":
        from beadline.jobs.toml_job import open_toml

        return open_toml(file)
    if file.suffix != ".py":
        raise UsageError(f"job file {file} is not a .py file, nor a .toml file. {NOTHING_WRITTEN}")
    return _open_python(file)


def _open_python(file: Path) -> JobFile:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{file}{line}: this is not Python: {error}. {NOTHING_WRITTEN}") from error
    except OSError as error:
        raise UsageError(f"job file {file} cannot be read: {error}. {NOTHING_WRITTEN}") from error
    _check_defines_job(file, tree)
    make_importable(str(file.resolve().parent))
    named = any(_may_define("CHECKPOINT", node) for node in _of_module(tree))
    return JobFile(file, _conf(file, tree), no_checkpoint=None if named else str(file))


def _check_defines_job(file: Path, tree: ast.Module) -> None:
    """Look for ``job`` without running the file: such a mistake must not wait for Spark to start.

    It is found again, for certain, in the module that was run.
    """
    functions = []
    for node in _of_module(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "job":
            functions.append(node)
        elif _may_define("job", node):
            return
    if not functions:
        raise UsageError(f"job file {file} defines no job. Add: {_EXAMPLE}. {NOTHING_WRITTEN}")
    taken = functions[-1].args
    few = len(taken.posonlyargs) + len(taken.args)
    if not functions[-1].decorator_list and not few and taken.vararg is None:
        raise UsageError(
            f"{file}:{functions[-1].lineno}: job must take one argument, the Spark session: "
            f"{_EXAMPLE}. {NOTHING_WRITTEN}"
        )


def _of_module(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is run when the file is loaded; the bodies of functions and classes are not."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_module(node)


def _may_define(name: str, node: ast.AST) -> bool:
    """Whether a statement gives this name to something, or may for all that can be seen."""
    if isinstance(node, ast.alias):
        return node.name == "*" or (node.asname or node.name.partition(".")[0]) == name
    if isinstance(node, ast.Name):
        stored = isinstance(node.ctx, ast.Store) and node.id == name
        return stored or node.id in ("globals", "exec", "setattr", "vars", "locals")
    return isinstance(node, ast.AsyncFunctionDef | ast.ClassDef) and node.name == name


def load_job(file: JobFile) -> Job:
    """Load a job file of one query, with Spark up; raises ``UsageError`` otherwise."""
    return file.load()


def _load_python(file: JobFile) -> Job:
    module = _execute(file.path.resolve())
    path = file.path
    build = getattr(module, "job", None)
    if build is None:
        raise UsageError(f"job file {path} defines no job. Add: {_EXAMPLE}. {NOTHING_WRITTEN}")
    _check_signature(path, build)
    found = {
        name.lower(): _default(path, module, name) for name in _DEFAULTS if hasattr(module, name)
    }
    if "every" in found and found.get("available_now"):
        raise UsageError(
            f"job file {path} sets EVERY and AVAILABLE_NOW: take one. {NOTHING_WRITTEN}"
        )
    return Job(path, build, **found)


def build_stream(job: Job, spark: SparkSession) -> Stream:
    """Call the job; a Beadline error goes through, everything else is named with its line."""
    try:
        stream = job.build(spark)
    except BeadlineError:
        raise
    except Exception as error:
        raise _raised(job.path, "job(spark)", error) from error
    if not isinstance(stream, Stream):
        hint = ""
        if hasattr(stream, "awaitTermination"):
            hint = " It must not call start(): the command line does, with its checkpoint."
        raise UsageError(
            f"job(spark) of {job.path} returned {type(stream).__name__}, not a Stream. "
            f"Write: {_EXAMPLE}.{hint} {NOTHING_WRITTEN if not hint else ''}".rstrip()
        )
    return stream


def reason(error: BaseException) -> str:
    """The type and the first lines of an error's text, without the Java stack that may follow."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("at ", "JVM stacktrace"))]
    text = " ".join(said[:3]) or "no message"
    return f"{type(error).__name__}: {text[:_REASON_LENGTH_MAX]}"


def _conf(file: Path, tree: ast.Module) -> dict[str, Any]:
    """Read ``CONF = {...}`` without running the file: Spark is started with it."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        if any(isinstance(target, ast.Name) and target.id == "CONF" for target in node.targets):
            try:
                return dict(ast.literal_eval(node.value))
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"{file}:{node.lineno}: CONF must be a dict of plain values, because Spark is "
                    f"started with it before the file is run. {NOTHING_WRITTEN}"
                ) from error
    return {}


def make_importable(folder: str) -> None:
    """As with ``python file``: what lies beside it can be imported, in Spark's workers too."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])


def _execute(file: Path) -> ModuleType:
    """Run the file as a module of its own."""
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and pickle look there
    _pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except BeadlineError:
        raise
    except Exception as error:
        raise _raised(file, "loading it", error) from error
    except SystemExit as error:
        raise UsageError(f"job file {file} calls exit({error.code}). {NOTHING_WRITTEN}") from error
    return module


def _pickle_by_value(module: ModuleType) -> None:
    """Send functions of the job file whole: no worker could import a module of that name."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _check_signature(file: Path, build: Any) -> None:
    """``job`` must be callable with the session, and nothing more."""
    if not callable(build):
        what = type(build).__name__
        raise UsageError(
            f"job of {file} is a {what}, not a function: {_EXAMPLE}. {NOTHING_WRITTEN}"
        )
    try:
        inspect.signature(build).bind(object())
    except TypeError as error:
        raise UsageError(
            f"job of {file} must take one argument, the Spark session, but {error}: {_EXAMPLE}. "
            f"{NOTHING_WRITTEN}"
        ) from error


def _default(file: Path, module: ModuleType, name: str) -> Any:
    value = getattr(module, name)
    if name == "CHECKPOINT" and isinstance(value, Path):
        value = str(value)
    wanted = _DEFAULTS[name]
    if not isinstance(value, wanted):
        raise UsageError(
            f"{name} of job file {file} must be a {wanted.__name__}, not "
            f"{type(value).__name__}. {NOTHING_WRITTEN}"
        )
    return value


def _raised(file: Path, what: str, error: Exception) -> UsageError:
    """Name the last line of the job file itself on the error's way."""
    here = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file.resolve())
    ]
    where = f"{file}:{here[-1]}" if here else str(file)
    return UsageError(f"{where}: {what} raised {reason(error)}. {NOTHING_WRITTEN}")
