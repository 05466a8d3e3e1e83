"""Shared by the commands that take a job file: settings, a session, and short errors."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beadline.errors import BeadlineError, EpochFailed, UsageError
from beadline.jobs.loading import JobFile, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JobArgument = Annotated[
    str, typer.Argument(help="A TOML file, or a Python file that defines job(spark) -> Stream.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option(help="A Spark setting, KEY=VALUE; may be repeated.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show Spark's own log, and the tracebacks of errors.")
]

_ECHOES = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextmanager
def job_session(file: JobFile, settings: dict[str, Any], command: str) -> Iterator[SparkSession]:
    """Yield a session; it is stopped afterwards if it was created here."""
    from pyspark.sql import SparkSession

    from beadline.environment.session import session

    ours = SparkSession.getActiveSession() is None
    try:
        spark = session(f"beadline {command} {file.path.name}", file.connectors, **settings)
    except BeadlineError:
        raise
    except Exception as error:
        raise UsageError(
            f"{file.path}: Spark did not start: {reason(error)} Spark's own output, if any, is "
            "above. Check the settings in CONF (in TOML: [spark]) and --conf. Nothing was "
            "written."
        ) from error
    try:
        with _no_echo():
            yield spark
    finally:
        if ours:
            spark.stop()


@contextmanager
def _no_echo() -> Iterator[None]:
    """Keep PySpark from logging every SQL error that it also raises, Java stack trace and all.

    The command reports the error itself, without secrets.
    """
    from pyspark.logger import PySparkLogger

    def nothing(record: logging.LogRecord) -> bool:
        return False

    loggers = [PySparkLogger.getLogger(name) for name in _ECHOES]
    for logger in loggers:
        logger.addFilter(nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(nothing)


def settings_of(conf: list[str] | None) -> dict[str, str]:
    """Read the ``--conf`` options."""
    pairs = [text.partition("=") for text in conf or []]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise UsageError(f"--conf {key!r} is not KEY=VALUE. Nothing was written.")
    return {key: value for key, _, value in pairs}


def show_trace(job: JobFile, error: Exception) -> None:
    """Print the full traceback of an error, with secrets redacted."""
    sys.stderr.write(job.redact("".join(traceback.format_exception(error))))


def as_beadline_error(job: JobFile, error: Exception) -> BeadlineError:
    """Return the error as Beadline's own, without a Java stack trace and with secrets redacted."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError

    if isinstance(error, BeadlineError):
        said = job.redact(str(error))
        return error if said == str(error) else type(error)(said)
    if isinstance(error, AnalysisException | IllegalArgumentException | PySparkValueError):
        return UsageError(job.redact(f"{job.path}: Spark rejected the query: {reason(error)}"))
    return EpochFailed(
        job.redact(
            f"{job.path}: the query ended with {reason(error)}. Nothing decided is lost; the next "
            "start continues from there. --verbose shows the full traceback."
        )
    )
