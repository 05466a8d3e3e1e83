"""Asking Spark for its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def value_of(session: SparkSession, key: str) -> str | None:
    """Return a setting's value, Spark's own default included; None if this Spark has none.

    Asked without a default of ours: with one, Spark does not tell its own.
    """
    try:
        return session.conf.get(key)
    except PySparkException:
        return None


def is_true(value: object) -> bool:
    """Whether Spark takes a value for true: in any case."""
    return str(value).strip().lower() == "true"


def is_set(session: SparkSession, key: str) -> bool:
    """Whether somebody has set it; Spark tells a value in any case."""
    return bool(session._jsparkSession.sessionState().conf().contains(key))
