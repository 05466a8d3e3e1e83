"""Which Java is found, how its version is read, and that every problem carries its fix.

The `java` of these tests is a script that prints what real ones print: the versions must not depend
on what this machine has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.environment import java
from beadline.environment.java import FIX, find_java, require_java
from beadline.environment.session import session
from beadline.errors import JavaProblem

SEVENTEEN = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'
TWENTY_ONE = 'openjdk version "21" 2023-09-19'
EIGHT = 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)'


def fake_java(home: Path, answer: str) -> Path:
    """Make a `java` that answers `-version` on stderr, as real ones do."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n[ \"$1\" = -version ] || exit 9\ncat >&2 <<'END'\n{answer}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "version", "major", "tested"),
    [
        (SEVENTEEN, "17.0.15", 17, True),
        (TWENTY_ONE, "21", 21, True),
        ('openjdk version "21-ea" 2023-09-19', "21-ea", 21, True),
        ('openjdk version "25.0.1" 2025-10-21 LTS', "25.0.1", 25, False),
        (f"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n{SEVENTEEN}", "17.0.15", 17, True),
        (f'NOTE: Picked up "1.2" options\n{TWENTY_ONE}', "21", 21, True),
    ],
)
def test_versions(tmp_path: Path, answer: str, version: str, major: int, tested: bool) -> None:
    path = fake_java(tmp_path, answer)
    found = require_java({"JAVA_HOME": str(tmp_path)})
    assert (found.path, found.version, found.major) == (path, version, major)
    assert found.tested is tested


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", SEVENTEEN)
    fake_java(tmp_path / "other", TWENTY_ONE)
    environment = {"PATH": f"{tmp_path}/other/bin:/usr/bin:/bin"}
    assert find_java(environment).major == 21
    assert find_java({**environment, "JAVA_HOME": f"{tmp_path}/home"}).major == 17
    assert find_java({**environment, "JAVA_HOME": ""}).major == 21


def test_too_old(tmp_path: Path) -> None:
    fake_java(tmp_path, EIGHT)
    environment = {"JAVA_HOME": str(tmp_path)}
    assert find_java(environment).major == 8
    with pytest.raises(JavaProblem) as raised:
        require_java(environment)
    assert "1.8.0_392" in str(raised.value)
    assert str(raised.value).endswith(FIX)


def test_none(tmp_path: Path) -> None:
    with pytest.raises(JavaProblem, match="No Java on the PATH, and JAVA_HOME") as raised:
        require_java({"PATH": str(tmp_path)})
    assert str(raised.value).endswith(FIX)
    with pytest.raises(JavaProblem, match="No Java on the PATH"):
        require_java({})


def test_java_home_is_wrong_though_the_path_is_right(tmp_path: Path) -> None:
    """Spark's script would take JAVA_HOME and fail, so it is the problem to report."""
    fake_java(tmp_path / "good", SEVENTEEN)
    environment = {"JAVA_HOME": f"{tmp_path}/gone", "PATH": f"{tmp_path}/good/bin:/bin"}
    with pytest.raises(JavaProblem, match=r"JAVA_HOME is .*gone"):
        require_java(environment)


@pytest.mark.parametrize("answer", ["", "Segmentation fault", "Unable to locate a Java Runtime"])
def test_not_a_java(tmp_path: Path, answer: str) -> None:
    """macOS has a `java` that only says that there is none."""
    fake_java(tmp_path, answer)
    with pytest.raises(JavaProblem, match="printed no Java version") as raised:
        require_java({"JAVA_HOME": str(tmp_path)})
    assert str(raised.value).endswith(FIX)


def test_cannot_be_run(tmp_path: Path) -> None:
    fake_java(tmp_path, SEVENTEEN).write_text("#!/no/such/interpreter\n")
    with pytest.raises(JavaProblem, match="cannot be run"):
        require_java({"JAVA_HOME": str(tmp_path)})


def test_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, SEVENTEEN).write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(java, "_ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(JavaProblem, match="did not answer"):
        require_java({"JAVA_HOME": str(tmp_path)})


def test_a_session_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of PySpark's "Java gateway process exited"."""
    fake_java(tmp_path, EIGHT)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaProblem) as raised:
        session("no-java")
    with pytest.raises(JavaProblem) as wanted:
        require_java()
    assert str(raised.value) == str(wanted.value)
