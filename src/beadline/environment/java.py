"""The Java that Spark will use, checked before Spark fails because of it.

Without Java, or with one that is too old, PySpark dies in a shell script and Python sees "Java
gateway process exited". So the `java` that Spark's script would use is asked for its version first,
and an error is one sentence that says what to do. Everything that starts a JVM uses this module, so
the message is always the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from beadline.errors import JavaProblem

OLDEST = 17
_TESTED = (17, 21)
FIX = "Install Java 17 or 21 and put it on the PATH, or set JAVA_HOME to its folder."

_ANSWER_TIMEOUT_S = 30
# `openjdk version "17.0.15" …`, `java version "1.8.0_392"`, `openjdk version "21-ea" …`
_VERSION = re.compile(r'^\S+ version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class JavaInstallation:
    """Where a Java is, and which version it reports."""

    path: Path
    version: str
    major: int

    @property
    def tested(self) -> bool:
        """Whether Spark 4 names this version as one that it runs on."""
        return self.major in _TESTED


def require_java(environment: Mapping[str, str] = os.environ) -> JavaInstallation:
    """Return a Java that Spark 4 can run on, or raise `JavaProblem` with the fix."""
    java = find_java(environment)
    if java.major < OLDEST:
        raise JavaProblem(f"Spark 4 needs Java 17 or 21, and {java.path} is {java.version}. {FIX}")
    return java


def find_java(environment: Mapping[str, str] = os.environ) -> JavaInstallation:
    """Return the Java that Spark would start, whatever its version."""
    path = java_path(environment)
    answer = _ask(path)
    found = _VERSION.search(answer)
    if found is None:
        said = answer.strip() or "nothing"
        raise JavaProblem(f"{path} -version printed no Java version, but: {said}. {FIX}")
    return JavaInstallation(path, found["text"], int(found["major"]))


def java_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Choose as Spark's own script does: JAVA_HOME if it is set, even if wrongly, else the PATH."""
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise JavaProblem(f"JAVA_HOME is {home}, and there is no bin/java in it. {FIX}")
        return path
    # An empty PATH must not make `which` fall back to its default.
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise JavaProblem(f"No Java on the PATH, and JAVA_HOME is not set. {FIX}")
    return Path(found)


def _ask(path: Path) -> str:
    """Java writes its version to stderr, after a note on JAVA_TOOL_OPTIONS if it is set."""
    try:
        return run_program([str(path), "-version"], _ANSWER_TIMEOUT_S).stdout
    except subprocess.TimeoutExpired as error:
        raise JavaProblem(
            f"{path} -version did not answer within {_ANSWER_TIMEOUT_S} s. {FIX}"
        ) from error
    except OSError as error:
        raise JavaProblem(f"{path} cannot be run: {error}. {FIX}") from error


def run_program(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input, and with stderr in its output."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
