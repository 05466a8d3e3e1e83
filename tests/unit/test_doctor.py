"""`beadline doctor`: what it finds, how it says it, and what it exits with."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from beadline import cli, extras
from beadline.cli import app as app_module
from beadline.cli.app import app
from beadline.environment import doctor
from beadline.environment.doctor import REQUIRED, Required
from beadline.environment.java import FIX
from beadline.errors import BadQuery, BeadlineError, Fenced, GuaranteeRefused
from tests.unit.test_extras import distribution, metadata
from tests.unit.test_java import EIGHT, SEVENTEEN, fake_java

SOURCES = Path(extras.__file__).parents[1]


@pytest.fixture(autouse=True)
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_java(tmp_path / "java", SEVENTEEN)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("BEADLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "java"


def run_json() -> tuple[int, dict[str, Any], dict[str, dict[str, str]]]:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    (line,) = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    return done.exit_code, result, {check["name"]: check for check in result["checks"]}


def test_healthy() -> None:
    code, result, checks = run_json()
    assert code == 0
    assert result["ok"] is True
    assert checks["java"]["status"] == "ok"
    assert checks["java"]["found"].startswith("17.0.15 ")
    for required in REQUIRED:
        assert checks[required.distribution]["status"] == "ok"
    assert {f"extra {name}" for name in extras.EXTRAS} <= set(checks)


def test_there_are_only_extras_that_some_code_asks_for() -> None:
    code = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    asked = {name for name in extras.EXTRAS if re.search(rf'require\(\s*"{name}"', code)}
    assert asked == set(extras.EXTRAS)
    _, _, checks = run_json()
    shown = {name.removeprefix("extra ") for name in checks if name.startswith("extra ")}
    assert shown == asked


def test_whatever_is_not_ok_has_a_fix() -> None:
    _, _, checks = run_json()
    assert all(check["fix"] for check in checks.values() if check["status"] != "ok")


def test_no_java_is_broken(java_home: Path) -> None:
    (java_home / "bin" / "java").unlink()
    code, result, checks = run_json()
    assert code == 1
    assert result["ok"] is False
    assert checks["java"]["status"] == "broken"
    assert checks["java"]["fix"].endswith(FIX)


def test_old_java_is_broken_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", EIGHT)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    code, _, checks = run_json()
    assert code == 1
    assert checks["java"]["found"] == "1.8.0_392"


def test_new_java_is_a_warning_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "new", 'openjdk version "25" 2025-09-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    code, _, checks = run_json()
    assert code == 0
    assert checks["java"]["status"] == "warning"


@pytest.mark.parametrize("required", [Required("pandas", (1,), (2,)), Required("no-such", (1,))])
def test_wrong_or_absent_package(required: Required, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", (required,))
    code, _, checks = run_json()
    assert code == 1
    finding = checks[required.distribution]
    assert finding["status"] == "broken"
    assert finding["fix"] == f"Run: pip install '{required.specifier}'"


def test_ranges() -> None:
    spark = Required("pyspark", (4, 0), (5,))
    assert spark.specifier == "pyspark>=4.0,<5"
    assert [spark.holds(v) for v in ("3.5.6", "4.0.0", "4.2.0", "4.1.0.dev1", "5.0.0", "?")] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_ranges_are_those_of_the_package() -> None:
    declared = {distribution(text): set(text.split(",")) for text in metadata()["dependencies"]}
    for required in REQUIRED:
        assert set(required.specifier.split(",")) == declared[required.distribution]


def test_an_extra_is_absent_or_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "here": (extras.Requirement("pytest", "pytest"),),
        "gone": (extras.Requirement("beadline_no_such_module", "no-such"),),
    }
    monkeypatch.setattr(extras, "EXTRAS", table)
    code, _, checks = run_json()
    assert code == 0
    assert checks["extra here"]["found"] == f"pytest {pytest.__version__}"
    assert checks["extra gone"]["status"] == "absent"
    assert "beadline[gone]" in checks["extra gone"]["fix"]


def test_jars_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "jars" / "some-bundle"
    assert doctor.jars().status == "absent"
    folder.mkdir(parents=True)
    (folder / "a.jar").touch()
    assert doctor.jars().found.startswith("1 in ")


def test_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "17.0.15" in done.stdout
    if extras.missing("kafka"):
        assert "beadline[kafka]" in done.stdout


def test_unknown_command_is_usage() -> None:
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(BeadlineError, 1), (BadQuery, 2), (GuaranteeRefused, 3), (Fenced, 4)],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_errors_become_exit_codes(
    error: type[BeadlineError],
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing() -> None:
        raise error("what happened [and where]")

    monkeypatch.setattr(app_module, "app", failing)
    monkeypatch.setattr(sys, "argv", ["beadline", "run", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == code
    written = capsys.readouterr()
    if as_json:
        said = {"error": error.__name__, "message": "what happened [and where]", "exit_code": code}
        assert json.loads(written.out) == said
    else:
        assert written.err == f"{error.__name__}: what happened [and where]\n"
