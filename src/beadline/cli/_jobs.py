"""What the commands that take a job file share: settings, a session, and errors told shortly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beadline.errors import BeadlineError, EpochFailed, UsageError
from beadline.run.jobs import JobFile, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ConfOption = Annotated[
    list[str] | None, typer.Option(help="A Spark setting, KEY=VALUE; may be repeated.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show Spark's own log, and traces of errors.")
]


@contextmanager
def job_session(file: JobFile, settings: dict[str, Any], command: str) -> Iterator[SparkSession]:
    """Yield a session, ended afterwards if it was begun here."""
    from pyspark.sql import SparkSession

    from beadline.run.session import session

    ours = SparkSession.getActiveSession() is None
    spark = session(f"beadline {command} {file.path.name}", **settings)
    try:
        yield spark
    finally:
        if ours:
            spark.stop()


def settings_of(conf: list[str] | None) -> dict[str, str]:
    """Read the ``--conf`` options."""
    pairs = [text.partition("=") for text in conf or []]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise UsageError(f"--conf {key!r} is not KEY=VALUE. Nothing was written.")
    return {key: value for key, _, value in pairs}


def told(job: JobFile, error: Exception) -> BeadlineError:
    """Beadline's errors are what they are; Spark's are told without their Java stack."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError

    if isinstance(error, BeadlineError):
        return error
    if isinstance(error, AnalysisException | IllegalArgumentException | PySparkValueError):
        return UsageError(f"{job.path}: Spark refuses the query: {reason(error)}")
    return EpochFailed(
        f"{job.path}: the query ended with {reason(error)}. Nothing decided is lost; the next "
        "start goes on from there. --verbose shows the whole trace."
    )
