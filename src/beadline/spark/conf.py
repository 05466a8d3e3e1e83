"""Asking Spark for its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def value_of(session: SparkSession, key: str) -> str | None:
    """Return a setting's value, Spark's own default included; None if this Spark has none.

    Asked without a default of ours: given one, Spark does not return its own.
    """
    try:
        return session.conf.get(key)
    except PySparkException:
        return None


def is_true(value: object) -> bool:
    """Whether Spark considers a value true, in upper or lower case."""
    return str(value).strip().lower() == "true"


def is_set(session: SparkSession, key: str) -> bool:
    """Whether it was set explicitly; Spark returns a value in either case."""
    return bool(session._jsparkSession.sessionState().conf().contains(key))
