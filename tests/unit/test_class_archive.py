"""The archive of classes: shared if it is there, made only if asked, in nobody's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from beadline.verify import class_archive


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive of this Java and Spark would be; there is none yet."""
    monkeypatch.setenv("BEADLINE_CACHE", str(tmp_path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    return tmp_path / "class-archive" / f"spark-{class_archive._fingerprint()}.jsa"


def options() -> str:
    return os.environ["SPARK_SUBMIT_OPTS"]


def test_without_an_archive_nothing_is_changed(archive: Path) -> None:
    class_archive.use(make=False)
    assert options() == "-Dmine=1"
    assert not archive.parent.exists()


def test_one_that_is_there_is_shared_beside_the_users_own_options(archive: Path) -> None:
    archive.parent.mkdir()
    archive.touch()
    class_archive.use(make=False)
    assert options() == f"-Dmine=1 -XX:SharedArchiveFile={archive} -Xlog:disable"
    class_archive.use(make=False)  # once
    assert options().count("SharedArchiveFile") == 1


def test_an_archive_of_the_users_own_is_kept(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/mine.jsa")
    class_archive.use(make=True)
    assert options() == "-XX:SharedArchiveFile=/mine.jsa"


def test_without_java_no_archive_is_made(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(archive.parent / "nowhere"))
    monkeypatch.setenv("PATH", "")
    class_archive.use(make=True)
    assert options() == "-Dmine=1"


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"spark-{number}.jsa"
        path.touch()
        os.utime(path, (number, number))
    class_archive._forget_older(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "spark-2.jsa",
        "spark-3.jsa",
        "spark-4.jsa",
    ]
