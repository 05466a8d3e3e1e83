"""Spark's classes, read and verified once for all the drivers that are killed.

A run of kills starts dozens of drivers, and half of such a JVM's short life is loading the same
classes. Java keeps them in an archive that later JVMs map (class data sharing); a JVM with a
different class path ignores it. It saves a third of the time from start to sixth epoch, and takes
half a minute to make, so it is kept in Beadline's cache folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from beadline.environment.java import find_java
from beadline.environment.maven import cache_folder
from beadline.errors import JavaProblem

_TIMEOUT_S = 180
_KEPT = 3
_SHARED = "-XX:SharedArchiveFile"
# Java would warn on stdout, where --json is read.
_QUIET = "-Xlog:disable"
# One epoch through a Python worker, so that what an epoch needs is in it too.
_JOB = """
import sys
from beadline import exactly_once
from beadline.environment.session import session
from beadline.sinks import FileSink

conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
spark = session("class-archive", (), **conf)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
stream = exactly_once(rows, "archive").to(FileSink(sys.argv[1] + "/out"))
stream.start(sys.argv[1] + "/checkpoint", available_now=True).awaitTermination()
spark.stop()
"""


def use(*, make: bool) -> None:
    """Let the JVMs of this process and its children share an archive; make it if it is missing.

    An archive that the user has configured is kept.
    """
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if _SHARED in options:
        return
    try:
        archive = cache_folder() / "class-archive" / f"spark-{_fingerprint()}.jsa"
    except JavaProblem:
        return  # what needs Java will say so
    if archive.exists() or (make and _made(archive)):
        added = f"{_SHARED}={archive} {_QUIET}"
        os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {added}".strip()


def _fingerprint() -> str:
    """Depends on Java and Spark: the archive of another version is of no use."""
    java = find_java()
    spark = find_spec("pyspark")  # not imported: every command would wait for it
    assert spark is not None
    assert spark.origin is not None
    jars = Path(spark.origin).with_name("jars")
    # Java rejects an archive if its jars were installed at another time.
    of = f"{java.path} {java.version} {version('pyspark')} {jars} {jars.stat().st_mtime_ns}"
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def _made(archive: Path) -> bool:
    """Run a job whose JVM writes the archive when it exits; if it fails, kills only take longer."""
    with _alone(archive.parent):
        return archive.exists() or _make(archive)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process makes it; the others wait until it exists."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(archive: Path) -> bool:
    making = archive.with_suffix(f".{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={making} {_QUIET}"
    folder = archive.with_suffix(f".{os.getpid()}-job")
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", _JOB, str(folder)]
    try:
        # The JVM has the pipe too: this returns when the JVM is gone, not only its Python.
        subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not making.exists():
        return False
    making.replace(archive)
    _forget_older(archive.parent)
    return True


def _forget_older(folder: Path) -> None:
    """Each has some 160 MB, and every new environment needs another."""
    found = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        path.unlink(missing_ok=True)
