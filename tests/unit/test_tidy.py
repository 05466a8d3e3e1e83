"""The house rules, as a test: cheap from the first commit and impossible later.

What is checked: functions of at most 60 lines and lines of at most 100 columns; a docstring for
every module; what a package may import, and that the packages form a graph without cycles (see
ARCHITECTURE.md); where a SparkSession may be touched; that the states of an epoch stay pure; that
no name of a class, public or not, and no public alias or constant means two things; that no text
names one machine or a package registry. Ruff checks the rest. Every rule is also tried on a piece
of code that breaks it: a checker that finds nothing may be a checker that looks at nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100

TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cfg", ".ini", ".sh", ".sql", ""}
NOT_OURS = {"build", "dist", "site", "__pycache__", "node_modules"}

# What a sink may import of Beadline, besides its own folder: the one package that every sink
# needs, and what ours share.
SINK_MAY_IMPORT = ("beadline.sink", "beadline.sinks.shared", "beadline.shared", "beadline.files")
SPARK_SESSION_IN = (
    "stream.py",
    "spark/",
    "environment/",
    "jobs/",
    "testing/",
    "cli/",
    "state/",
    "demo/",
    "verify/",
    "sources/",
)
IO_MODULES = {
    "asyncio", "fcntl", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib",
    "py4j", "pyarrow", "pyspark", "select", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "sys", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
# Joined here, so that this file does not break its own rule.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("registry", "npmjs", "org"),
    )
)
# CamelCase or UPPER_CASE; neither a type variable, T, nor a name of the module's own, _LEDGER.
ALIAS_OR_CONSTANT = re.compile(r"[A-Z]\w+\Z")
MACHINE_PATH = re.compile(r"(?<![\w./…<>{}-])/" + r"work/")


def python_files(*folders: str) -> list[Path]:
    """Every Python file of ours in these folders; a folder that is not there yet has none."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    """Every text file of ours, wherever it is; folders that tools make are not entered."""

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                hidden = path.name.startswith(".") and path.name != ".ci"
                if not hidden and path.name not in NOT_OURS:
                    yield from walk(path)
            elif path.suffix in TEXT and path.name != ".git":  # a file in a worktree
                yield path

    yield from walk(ROOT)


def name_of(path: Path) -> str:
    """`src/beadline/sink.py` is `sink.py`; others are named from the root."""
    package = ROOT / "src" / "beadline"
    return path.relative_to(package if package in path.parents else ROOT).as_posix()


def size_problems(name: str, code: str) -> Iterator[str]:
    """Functions and lines that are too long."""
    lines = code.splitlines()
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, more than {MAX_COLUMNS}"
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines, more than 60"


def docstring_problems(name: str, code: str) -> Iterator[str]:
    """Modules that do not say what they are and why; an empty `__init__.py` is nothing."""
    if code.strip() and not ast.get_docstring(ast.parse(code)):
        yield f"{name}: the module has no docstring"


def imports(code: str) -> Iterator[tuple[int, str]]:
    """Every imported name with its line; `from a.b import c` is `a.b.c`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def inside(imported: str, *modules: str) -> bool:
    """Whether an imported name is one of these modules, or in one of them."""
    return any(f"{imported}.".startswith(f"{module}.") for module in modules)


def boundary_problems(name: str, code: str) -> Iterator[str]:
    """Imports that the design forbids, for a module named from `src/beadline`."""
    for line, imported in imports(code):
        where = f"{name}:{line}: imports {imported}"
        if imported.startswith("."):
            yield f"{where}: relative imports hide a boundary"
        own = "beadline." + ".".join(name.removesuffix(".py").split("/")[:2])
        foreign = inside(imported, "beadline") and not inside(imported, *SINK_MAY_IMPORT, own)
        if name.startswith("sinks/") and name != "sinks/__init__.py" and foreign:
            yield f"{where}: a sink may import only {', '.join(SINK_MAY_IMPORT)}"
        if name.startswith("sources/") and inside(imported, "beadline.sinks"):
            yield f"{where}: sources and sinks know nothing of each other; see shared/"
        if inside(imported, "tests", "bench"):
            yield f"{where}: what users install cannot need our tests"
        if name.startswith("protocol/") and inside(imported, "pyspark", "py4j"):
            yield f"{where}: the protocol is given a way to run, it does not know Spark"
        if name == "protocol/epoch.py" and imported.split(".")[0] in IO_MODULES:
            yield f"{where}: protocol/epoch.py does no I/O"
        for top in ("cli", "dashboard"):
            may = name.startswith((f"{top}/", "cli/")) or name == "__main__.py"
            if inside(imported, f"beadline.{top}") and not may:
                yield f"{where}: nothing imports {top}"


def spark_session_problems(name: str, code: str) -> Iterator[str]:
    """Mentions of SparkSession outside the doors to Spark, for a module under `src/beadline`."""
    if name.startswith(SPARK_SESSION_IN):
        return
    for node in ast.walk(ast.parse(code)):
        mentioned = {
            ast.Name: getattr(node, "id", ""),
            ast.Attribute: getattr(node, "attr", ""),
            ast.alias: getattr(node, "name", ""),
        }.get(type(node), "")
        if mentioned == "SparkSession":
            line = getattr(node, "lineno", 0)
            yield f"{name}:{line}: only {', '.join(SPARK_SESSION_IN)} touch a SparkSession"


def pure_problems(name: str, code: str) -> Iterator[str]:
    """Calls by which a pure module would reach outside without importing anything."""
    if name != "protocol/epoch.py":
        return
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and node.id in ("open", "print", "input", "__import__"):
            yield f"{name}:{node.lineno}: {node.id}: protocol/epoch.py does no I/O"


def portable_problems(name: str, text: str) -> Iterator[str]:
    """Words that are true on one machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: an absolute path of one machine"
        for host in REGISTRIES:
            if host in line:
                yield f"{name}:{number}: names a package registry, which users may mirror"


def at_import(node: ast.AST) -> Iterator[str]:
    """Every name that is imported as soon as a module is; not for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from at_import(child)


def package_graph(modules: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Which package, or module at the root, imports which; for names from `src/beadline`."""
    code = dict(modules)
    rooms = {name.split("/")[0].removesuffix(".py") for name in code}
    graph: dict[str, set[str]] = {room: set() for room in rooms}
    for name, text in code.items():
        room = name.split("/")[0].removesuffix(".py")
        for imported in at_import(ast.parse(text)):
            if inside(imported, "beadline"):
                other = imported.split(".")[1] if "." in imported else ""
                graph[room].add(other if other in rooms else "__init__")
        graph[room].discard(room)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """The packages that import one another, in a word: those that cannot be put in an order."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return [" -> ".join(reversed(error.args[1]))]
    return []


def twice_defined(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Classes, aliases and constants whose name is defined twice, and where: one name, one thing.

    An alias is a name in CamelCase for which a module has a value; a constant one in UPPER_CASE.
    ``_Answer`` and ``Answer`` are one name: a reader who looks for it finds both classes.
    """
    where: dict[str, list[str]] = {}
    for name, text in modules:
        module = ast.parse(text)
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name.lstrip("_"), []).append(f"{name}:{node.lineno}")
        for node in module.body:
            given = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            for part in (part for target in given if target for part in ast.walk(target)):
                if not isinstance(part, ast.Name) or not isinstance(part.ctx, ast.Store):
                    continue
                if ALIAS_OR_CONSTANT.match(part.id):
                    where.setdefault(part.id, []).append(f"{name}:{node.lineno}")
    return {name: places for name, places in where.items() if len(places) > 1}


Rule = Callable[[str, str], Iterator[str]]
EVERYWHERE: tuple[Rule, ...] = (size_problems, docstring_problems)
IN_PACKAGE: tuple[Rule, ...] = (boundary_problems, spark_session_problems, pure_problems)


def problems(paths: list[Path], rule: Rule) -> list[str]:
    return [problem for path in paths for problem in rule(name_of(path), path.read_text("utf-8"))]


@pytest.mark.parametrize("rule", EVERYWHERE, ids=lambda rule: rule.__name__)
def test_all_code(rule: Rule) -> None:
    paths = python_files("src", "tests", "bench", "examples")
    assert Path(__file__) in paths
    assert problems(paths, rule) == []


@pytest.mark.parametrize("rule", IN_PACKAGE, ids=lambda rule: rule.__name__)
def test_boundaries(rule: Rule) -> None:
    paths = python_files("src/beadline")
    assert paths
    assert problems(paths, rule) == []


def test_packages_form_a_graph_without_cycles() -> None:
    modules = [(name_of(path), path.read_text("utf-8")) for path in python_files("src/beadline")]
    graph = package_graph(modules)
    assert "protocol" in graph["spark"]
    assert cycles(graph) == []


def test_a_cycle_is_found() -> None:
    sinks = "from beadline.spark import x\n"
    spark = "from beadline.sinks.kafka import y\n"
    lazy = "def f():\n    from beadline.sinks.kafka import y\n"
    assert cycles(package_graph([("sinks/kafka.py", sinks), ("spark/query.py", spark)]))
    assert cycles(package_graph([("sinks/kafka.py", sinks), ("spark/query.py", lazy)])) == []


def test_no_class_alias_or_constant_is_defined_twice() -> None:
    modules = [(name_of(path), path.read_text("utf-8")) for path in python_files("src/beadline")]
    assert twice_defined(modules) == {}


def test_a_class_name_that_is_defined_twice_is_found() -> None:
    code = "class A:\n    class B: ...\n"
    assert twice_defined([("a.py", code), ("b.py", "class B: ...\n")]) == {
        "B": ["a.py:2", "b.py:1"]
    }


def test_a_private_class_with_the_name_of_a_public_one_is_found() -> None:
    code = "class _Answer: ...\n"
    assert twice_defined([("a.py", code), ("b.py", "class Answer: ...\n")]) == {
        "Answer": ["a.py:1", "b.py:1"]
    }


def test_an_alias_that_is_defined_twice_is_found() -> None:
    code = "Row = tuple[int]\nT = TypeVar('T')\n_Own = int\n"
    typed = "Row: TypeAlias = int\nT = TypeVar('T')\n_Own = str\n"
    assert twice_defined([("a.py", code), ("b.py", typed), ("c.py", "class Row: ...\n")]) == {
        "Row": ["a.py:1", "b.py:1", "c.py:1"]
    }


def test_a_constant_that_is_defined_twice_is_found() -> None:
    code = "MAX_S = 5\n_POLL_S = 1\nT = TypeVar('T')\n"
    pair = "MAX_S, LEAST_S = 6, 1\n_POLL_S = 2\nT = TypeVar('T')\nAT[MAX_S] = 1\n"
    assert twice_defined([("a.py", code), ("b.py", pair)]) == {"MAX_S": ["a.py:1", "b.py:1"]}


def test_nothing_of_one_machine() -> None:
    paths = list(text_files())
    assert ROOT / "Makefile" in paths
    assert ROOT / ".ci" / "run" in paths
    assert problems(paths, portable_problems) == []


LONG_FUNCTION = '"""Doc."""\ndef f():\n' + "    pass\n" * 60
BROKEN: tuple[tuple[Rule, str, str], ...] = (
    (size_problems, "ids.py", LONG_FUNCTION),
    (size_problems, "ids.py", "x = '" + "y" * 96 + "'\n"),
    (docstring_problems, "ids.py", "x = 1\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.protocol import epoch\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline import exactly_once\n"),
    (boundary_problems, "sinks/files/sink.py", "import beadline.stream\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.errors import BadSink\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.sinks.redis import RedisSink\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.environment import session\n"),
    (boundary_problems, "sinks/files/sink.py", "from . import _staging\n"),
    (boundary_problems, "sources/kafka/topics.py", "def f():\n    from beadline.sinks import x\n"),
    (boundary_problems, "protocol/decide.py", "def f():\n    from pyspark.sql import Row\n"),
    (boundary_problems, "protocol/epoch.py", "import os.path\n"),
    (boundary_problems, "protocol/epoch.py", "from pathlib import Path\n"),
    (boundary_problems, "stream.py", "from beadline.cli import main\n"),
    (boundary_problems, "demo/job.py", "from tests.harness import targets\n"),
    (boundary_problems, "observe/events.py", "from beadline import dashboard\n"),
    (spark_session_problems, "protocol/decide.py", "from pyspark.sql import SparkSession\n"),
    (spark_session_problems, "sinks/files/sink.py", "import pyspark.sql as s\ns.SparkSession\n"),
    (spark_session_problems, "points.py", "SparkSession.builder\n"),
    (pure_problems, "protocol/epoch.py", "open('x')\n"),
    (portable_problems, "README.md", "see " + "/" + "work/main\n"),
    (portable_problems, "README.md", f"from https://{REGISTRIES[0]}/simple\n"),
)
FINE: tuple[tuple[Rule, str, str], ...] = (
    (docstring_problems, "sinks/__init__.py", ""),
    (boundary_problems, "sinks/files/sink.py", "from beadline.sinks.files.marks import Marks\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.sink import Sink\n"),
    (boundary_problems, "sinks/files/sink.py", "from beadline.sink import stage\n"),
    (boundary_problems, "cli/dashboard.py", "from beadline.dashboard import serve\n"),
    (boundary_problems, "__main__.py", "from beadline.cli import main\n"),
    (spark_session_problems, "environment/session.py", "from pyspark.sql import SparkSession\n"),
    (spark_session_problems, "sinks/files/sink.py", "def f(df): return df.sparkSession\n"),
    (portable_problems, "a.py", "tmp_path / 'x' / 'work/parts'\nhdfs://host/work/orders\n"),
)


@pytest.mark.parametrize(("rule", "name", "code"), BROKEN)
def test_a_broken_rule_is_found(rule: Rule, name: str, code: str) -> None:
    assert list(rule(name, code))


@pytest.mark.parametrize(("rule", "name", "code"), FINE)
def test_what_is_allowed_is_not_found(rule: Rule, name: str, code: str) -> None:
    assert list(rule(name, code)) == []
