"""The settings by which Spark divides an epoch's rows into parts (rule 28).

They are recorded with every decision. If parts of a decided epoch are lost, the start that replays
it pins what it can to the recorded values, so that the rows are divided into the same parts on
another number of cores; only for that epoch, the first of the run. They are also set on the session
that the stream was read with: files are split by its settings, not by those of the copy that Spark
makes for each query. Whatever is planned on that session in the meantime uses them as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from beadline.spark.conf import is_set, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("beadline")

# As many parts as cores, for files and rows of the driver, unless it is set; so it can be pinned.
LEAVES = "spark.sql.leafNodeDefaultParallelism"
# The same, for sources that use nothing else (rate); fixed when Spark starts.
CORES = "spark.default.parallelism"
PINNED = (
    LEAVES,
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.sources.bucketing.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
)
# Spark keeps the first one in its own checkpoint, and a query is started with the second one off.
KEPT = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")


class Partitioning:
    """The partitioning settings of one running query."""

    def __init__(self) -> None:
        """Nothing is read before the first epoch."""
        self._found: dict[str, str] = {}
        self._grows = False  # whether the number of cores may change under a running query
        self._pinned: SparkSession | None = None

    def of(self, session: SparkSession) -> dict[str, str]:
        """Return the settings of an epoch that the query's session has planned."""
        if not self._found:
            local = (session.sparkContext.master or "").startswith("local[")
            self._grows = not local and not is_set(session, LEAVES)
            self._found = {key: value_of(session, key) or "" for key in (*KEPT, *PINNED)}
            self._count(session)
        elif self._grows:
            self._found = dict(self._found)  # that of the previous epoch has been handed out
            self._count(session)
        return self._found

    def _count(self, session: SparkSession) -> None:
        cores = str(session.sparkContext.defaultParallelism)
        self._found[CORES] = cores
        if self._grows or not self._found[LEAVES]:
            self._found[LEAVES] = cores

    def pin(self, session: SparkSession, recorded: Mapping[str, str]) -> None:
        """Set recorded settings before the query starts, if they differ from the current ones.

        A decision of an older version has fewer of them; the others are left alone.
        """
        with _lock:
            known = _known(session, recorded)
            if not known:
                return
            pins = ", ".join(f"{key}={value}" for key, value in known.items())
            logger.warning("an epoch is replayed with the partitioning that was decided: %s", pins)
            holders, before = _held.get(_name(session), (0, {}))
            was = {key: value_of(session, key) if is_set(session, key) else "" for key in known}
            _held[_name(session)] = (holders + 1, {**was, **before})
            _set(session, known)
            self._pinned = session

    def unpin(self, copy: SparkSession | None = None) -> None:
        """Go back to the user's own settings, in the query's copy of the session too."""
        if self._pinned is None:
            return
        with _lock:
            session, self._pinned = self._pinned, None
            holders, before = _held.pop(_name(session))
            if holders > 1:  # another query of this session replays, too
                _held[_name(session)] = (holders - 1, before)
            else:
                _set(session, before)
            if copy is not None:
                _set(copy, before)
        self._found = {}


_lock = threading.Lock()
# By session: how many queries have pinned its settings, and their previous values.
_held: dict[str, tuple[int, dict[str, str | None]]] = {}


def _name(session: SparkSession) -> str:
    return str(session._jsparkSession.sessionUUID())


def _known(session: SparkSession, recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded settings that can be pinned and whose values differ now."""
    known = {key: recorded[key] for key in PINNED if key in recorded}
    return {key: value for key, value in known.items() if value != _now(session, key)}


def _now(session: SparkSession, key: str) -> str:
    """Return a setting's value as it would be recorded now."""
    value = value_of(session, key) or ""
    return value or (str(session.sparkContext.defaultParallelism) if key == LEAVES else "")


def _set(session: SparkSession, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value:
            session.conf.set(key, value)
        else:
            session.conf.unset(key)
