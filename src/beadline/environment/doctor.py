"""What Beadline needs of its environment, and whether it is there: Java, versions, jars, extras.

It only checks, and never repairs. What is required is ok or broken; what is optional is ok or
absent, and an absent one breaks nothing. Each finding that is not ok carries its fix in one
sentence.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from beadline import extras
from beadline.environment import jars as connectors
from beadline.environment.java import find_java, require_java
from beadline.environment.maven import cache_folder
from beadline.errors import JavaProblem

Status = Literal["ok", "warning", "broken", "absent"]


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Required:
    """A distribution of the base install, with the versions that work: at least, and below."""

    distribution: str
    at_least: tuple[int, ...]
    below: tuple[int, ...] | None = None

    @property
    def specifier(self) -> str:
        """The range as pip writes it."""
        text = f"{self.distribution}>={_dotted(self.at_least)}"
        return text if self.below is None else f"{text},<{_dotted(self.below)}"

    def holds(self, version: str) -> bool:
        """Whether this version is in the range."""
        numbers = _numbers(version)
        return numbers >= self.at_least and (self.below is None or numbers < self.below)


REQUIRED = (
    Required("pyspark", (4, 0), (5,)),
    Required("pyarrow", (15,)),
    Required("pandas", (2, 2), (3,)),
)


def examine() -> Iterator[CheckResult]:
    """Look at everything, the required first."""
    yield CheckResult("beadline", "ok", importlib.metadata.version("beadline"))
    yield CheckResult("python", "ok", platform.python_version())
    yield java()
    for required in REQUIRED:
        yield package(required)
    yield maven()
    yield jars()
    for name in connectors.CONNECTORS:
        yield connector(name)
    for name in extras.EXTRAS:
        yield extra(name)


def java() -> CheckResult:
    """Spark 4 needs Java 17 or 21; a newer one may work, and gets a remark."""
    try:
        found = require_java()
    except JavaProblem as problem:
        return CheckResult("java", "broken", _too_old() or "not found", str(problem))
    text = f"{found.version} ({found.path})"
    if found.tested:
        return CheckResult("java", "ok", text)
    return CheckResult(
        "java", "warning", text, "If Spark fails to start, use Java 17 or 21 instead."
    )


def package(required: Required) -> CheckResult:
    """A distribution of the base install, in its range of versions."""
    fix = f"Run: pip install '{required.specifier}'"
    try:
        version = importlib.metadata.version(required.distribution)
    except importlib.metadata.PackageNotFoundError:
        return CheckResult(required.distribution, "broken", "not installed", fix)
    if required.holds(version):
        return CheckResult(required.distribution, "ok", version)
    return CheckResult(required.distribution, "broken", f"{version}, not {required.specifier}", fix)


def maven() -> CheckResult:
    """Only connectors that need jars, and the test servers, ask for it."""
    found = shutil.which("mvn")
    if found:
        return CheckResult("mvn", "ok", found)
    fix = "Install Maven if you use connectors that need jars, or give Spark the jars yourself."
    return CheckResult("mvn", "absent", "not on the PATH", fix)


def jars() -> CheckResult:
    """The jars that Maven has already fetched."""
    folder = cache_folder() / "jars"
    count = sum(1 for _ in folder.rglob("*.jar")) if folder.is_dir() else 0
    if count:
        return CheckResult("jars", "ok", f"{count} in {folder}")
    return CheckResult("jars", "absent", f"none in {folder}", "They are fetched when first needed.")


def connector(name: str) -> CheckResult:
    """The jars of one of Spark's own connectors, for the Spark that is installed."""
    try:
        folder = connectors.cached(name)
    except ImportError:
        return CheckResult(f"jars {name}", "absent", "no PySpark", "Install PySpark first.")
    if folder is not None:
        return CheckResult(f"jars {name}", "ok", str(folder))
    fix = f'Fetched by session("...", connectors=("{name}",)) when first needed.'
    return CheckResult(f"jars {name}", "absent", "not fetched yet", fix)


def extra(name: str) -> CheckResult:
    """An optional dependency, which is absent if any of its libraries is."""
    if extras.missing(name):
        return CheckResult(f"extra {name}", "absent", "not installed", extras.fix(name))
    versions = (f"{each.distribution} {each.version}" for each in extras.EXTRAS[name])
    return CheckResult(f"extra {name}", "ok", ", ".join(versions))


def _too_old() -> str:
    try:
        return find_java().version
    except JavaProblem:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """The release part: 4.1.0.dev2 is read as 4.1.0, which is near enough for a range."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release.group().split("."))) if release else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
