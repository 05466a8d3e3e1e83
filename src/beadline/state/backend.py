"""Which state store a checkpoint was made with, and in which format.

Spark writes the provider into every entry of its offset log, and a restart uses that one, whatever
the session says. It does not write down the format of the checkpoint: ``v2``, in which each run of
an epoch gives its state files names of their own, must be asked for again at every start, and only
for RocksDB. A checkpoint that was begun in one format cannot be continued in the other: Spark would
look for files by names that they do not have. So a query is started in the format that its commit
log shows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.files import FileSystem, join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

# The settings of `session()`; on another one, what `transformWithState` needs is the first.
ROCKSDB_STORE = {PROVIDER: ROCKSDB, CHANGELOG: "true", CHECKPOINT_FORMAT: "2"}
_changing = threading.RLock()  # a start within such a "with" has settings of its own


@dataclass(frozen=True)
class StateBackend:
    """What a checkpoint records about its state store; None for what it does not record yet."""

    provider: str | None = None
    format: int | None = None

    def settings(self, provider: str | None) -> dict[str, str]:
        """Return what a query on this checkpoint must be started with.

        ``provider`` is the session's, which counts where the checkpoint names none.
        """
        if (self.provider or provider) != ROCKSDB:
            return {CHECKPOINT_FORMAT: "1"}
        return {} if self.format is None else {CHECKPOINT_FORMAT: str(self.format)}


def backend_of(files: FileSystem, checkpoint: str) -> StateBackend:
    """Read the newest entries of Spark's two logs; a new checkpoint says nothing."""
    conf = offset_conf(files, checkpoint)
    committed = _newest(files, join(checkpoint, "commits"))
    version = None
    if committed is not None and committed[:1] == ["v1"]:
        version = 1
    elif committed is not None:
        version = 2  # v3 adds something about sinks
    return StateBackend(conf.get(PROVIDER), version)


def offset_conf(files: FileSystem, checkpoint: str) -> dict[str, str]:
    """Return the settings that Spark keeps from start to start, from its newest offsets."""
    lines = _newest(files, join(checkpoint, "offsets"))
    if lines is None or len(lines) < 2:
        return {}
    try:
        conf = json.loads(lines[1]).get("conf", {})
    except ValueError:  # "-": an old Spark has written nothing of the kind
        return {}
    return {key: str(value) for key, value in conf.items()}


def _newest(files: FileSystem, folder: str) -> list[str] | None:
    """Return the lines of a log's newest entry."""
    for number in sorted((int(n) for n in files.names(folder) if n.isdigit()), reverse=True):
        data = files.read(join(folder, str(number)))
        if data:  # not one that is freed meanwhile
            return data.decode("utf-8", "replace").splitlines()
    return None


@contextmanager
def session_settings(session: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, one thread at a time, and restore them."""
    with _changing:
        before = {key: session.conf.get(key, None) for key in conf}
        try:
            for key, value in conf.items():
                session.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, str(old))
