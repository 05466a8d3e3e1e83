"""Spark's classes, read and verified once for all the JVMs of a run.

The kill tests start a few hundred drivers, and half of such a JVM's short life is loading the same
classes. Java keeps them in an archive that later JVMs map (class data sharing); a JVM whose class
path is another one does without. Takes a third off the time from start to sixth epoch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyspark

from beadline.errors import JavaProblem
from beadline.run.java import find_java

_TIMEOUT_S = 180
# Java would warn on stdout, where --json is read.
_QUIET = "-Xlog:disable"
# One epoch through a Python worker, so that what an epoch needs is in it too.
_JOB = """
import sys
from beadline import exactly_once
from beadline.run.session import session
from beadline.sinks import FileSink

conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
spark = session("class-archive", (), **conf)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
stream = exactly_once(rows, "archive").to(FileSink(sys.argv[1] + "/out"))
stream.start(sys.argv[1] + "/checkpoint", available_now=True).awaitTermination()
spark.stop()
"""


def use(cache: Path, make: bool) -> None:
    """Let the JVMs of this run and its children share an archive, made first if it is not there."""
    try:
        archive = cache / f"spark-{_fingerprint()}.jsa"
    except JavaProblem:
        return  # the tests that need Java will say so
    if not archive.exists() and not (make and _made(archive)):
        return
    mine = f"-XX:SharedArchiveFile={archive} {_QUIET}"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {mine}".strip()


def _fingerprint() -> str:
    """Of the Java and the Spark: the archive of another is of no use."""
    java = find_java()
    of = f"{java.path} {java.version} {version('pyspark')} {pyspark.__file__}"
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def _made(archive: Path) -> bool:
    """Run a job whose JVM writes the archive at its end; without one, tests only take longer."""
    making = archive.with_suffix(f".{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={making} {_QUIET}"
    folder = archive.with_suffix(f".{os.getpid()}-job")
    # The JVM has the pipe too: this returns when the JVM is gone, not only its Python.
    subprocess.run(
        [sys.executable, "-c", _JOB, str(folder)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_S,
        check=False,
    )
    shutil.rmtree(folder, ignore_errors=True)
    if not making.exists():
        return False
    making.replace(archive)
    return True
