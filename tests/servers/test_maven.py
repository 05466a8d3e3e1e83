"""The jar cache, with a stand-in for `mvn` on the PATH: atomic, once, and clear about failures."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from beadline.environment.maven import Bundle
from beadline.testing.servers import ServerUnavailable, maven

BUNDLE = Bundle("sample-1", ("org.example:sample:1", "org.example:other:2"), without=("bad-*.jar",))

MAVEN = """\
#!{python}
import sys, time
from pathlib import Path
Path({log!r}).open("a").write("run\\n")
{body}
"""

SUCCEEDS = """
folder = Path(next(a for a in sys.argv if a.startswith("-DoutputDirectory=")).split("=", 1)[1])
folder.mkdir()
for jar in ("sample-1.jar", "bad-1.jar"):
    time.sleep(0.1)
    (folder / jar).write_bytes(b"jar")
"""
FAILS = "print('[ERROR] Could not resolve org.example:sample:1'); sys.exit(1)"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of the stand-in's runs; the cache and the PATH are the test's own."""
    monkeypatch.setenv("BEADLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    log = tmp_path / "runs"
    log.touch()
    return log


def stand_in(runs: Path, body: str) -> None:
    script = runs.parent / "bin" / "mvn"
    script.write_text(MAVEN.format(python=sys.executable, log=str(runs), body=body))
    script.chmod(0o755)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_fetches_once_however_many_ask(runs: Path) -> None:
    stand_in(runs, SUCCEEDS)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: maven.jars(BUNDLE), range(4)))
    [folder] = folders
    assert names(folder) == {"sample-1.jar"}
    assert runs.read_text().count("run") == 1
    assert names(folder.parent) == {".lock", folder.name}


def test_a_failure_names_the_reason_and_leaves_nothing(runs: Path) -> None:
    stand_in(runs, FAILS)
    with pytest.raises(ServerUnavailable, match=r"(?s)exit code 1.*Could not resolve"):
        maven.jars(BUNDLE)
    assert names(runs.parent / "cache" / "jars") == {".lock"}
    stand_in(runs, SUCCEEDS)
    assert maven.jars(BUNDLE).is_dir()


def test_no_maven_is_unavailable(runs: Path) -> None:
    with pytest.raises(ServerUnavailable, match="`mvn` is not on the PATH"):
        maven.jars(BUNDLE)


def test_a_changed_list_is_another_folder(runs: Path) -> None:
    stand_in(runs, SUCCEEDS)
    changed = Bundle("sample-1", ("org.example:sample:2",))
    assert maven.jars(BUNDLE) != maven.jars(changed)
