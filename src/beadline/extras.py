"""The optional dependencies, and the error that names a missing one.

A connector calls `require("kafka")` before it imports its library, so that a user without it gets
the command that installs it instead of a ModuleNotFoundError from deep inside.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from beadline.errors import MissingExtra


@dataclass(frozen=True)
class Requirement:
    """One library of an extra: what Python imports, and what pip installs."""

    module: str
    distribution: str

    @property
    def importable(self) -> bool:
        """Whether Python would find it; it is not imported, which may be slow."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None


# Must match pyproject.toml: a test compares them.
EXTRAS: Mapping[str, tuple[Requirement, ...]] = {
    "kafka": (
        Requirement("confluent_kafka", "confluent-kafka"),
        Requirement("kafka", "kafka-python"),
    ),
    "postgres": (
        Requirement("psycopg", "psycopg"),
        Requirement("adbc_driver_postgresql", "adbc-driver-postgresql"),
    ),
    "mysql": (Requirement("pymysql", "pymysql"),),
    "redis": (Requirement("redis", "redis"),),
    "hbase": (Requirement("happybase", "happybase"),),
}


def missing(extra: str) -> tuple[Requirement, ...]:
    """Return the libraries of this extra that are not installed."""
    return tuple(requirement for requirement in EXTRAS[extra] if not requirement.importable)


def require(extra: str) -> None:
    """Raise `MissingExtra`, with the command that installs it, unless the extra is installed."""
    absent = missing(extra)
    if absent:
        names = " and ".join(requirement.distribution for requirement in absent)
        raise MissingExtra(
            f"The extra '{extra}' is not installed ({names} missing). "
            f"Nothing was written. {fix(extra)}"
        )


def fix(extra: str) -> str:
    """Say in one sentence how to install the extra."""
    return f"Run: pip install 'beadline[{extra}]'"
