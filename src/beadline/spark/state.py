"""The state that a query would keep, before it runs: does it match its checkpoint?

Spark finds out in the first epoch, after our claim. Here the plan is run once in a separate folder,
without rows: Spark writes there what it would write into a new checkpoint about the state of each
operator, for which it also asks the Python processors. That is compared with the checkpoint.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from beadline.errors import NOTHING_WRITTEN, BadSetting, StateChanged
from beadline.files import FileSystem, open_files, qualify
from beadline.spark.conf import is_true, value_of
from beadline.spark.plan import is_stateful, nodes, plan_of
from beadline.state.backend import (
    HDFS_BACKED,
    PROVIDER,
    ROCKSDB_STORE,
    backend_of,
    offset_conf,
)
from beadline.state.compare import changes
from beadline.state.metadata import STATE_FOLDER, StateOperator, read_operators

logger = logging.getLogger("beadline")

_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_SCHEMA_CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
_STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"


def state_settings(frame: DataFrame, checkpoint: str) -> dict[str, str]:
    """Return the settings with which a stateful query continues as its checkpoint was begun."""
    if not is_stateful(frame):
        return {}
    provider = value_of(frame.sparkSession, PROVIDER)
    return backend_of(open_files(checkpoint), checkpoint).settings(provider)


def check_store(frame: DataFrame, checkpoint: str, query: str) -> None:
    """Refuse a state store that cannot hold this query's state."""
    if not _transforms(frame):
        return
    recorded = backend_of(open_files(checkpoint), checkpoint).provider
    if (recorded or value_of(frame.sparkSession, PROVIDER)) == HDFS_BACKED:
        _refuse_store(query, recorded, checkpoint)


def check_state(frame: DataFrame, output_mode: str, checkpoint: str, query: str) -> None:
    """Refuse to continue with state that this code would not keep."""
    if not is_stateful(frame):
        return
    files = open_files(checkpoint)
    held = read_operators(files, checkpoint)
    if not held or not is_true(value_of(frame.sparkSession, _SCHEMA_CHECK)):
        return
    found = _planned(frame, output_mode, files, checkpoint)
    if found is None:
        return
    evolves = value_of(frame.sparkSession, _ENCODING) == "avro"
    if clauses := changes(held, found, evolves=evolves):
        raise StateChanged(
            f"query {query!r}: its state differs from the state in checkpoint {checkpoint}: "
            f"{'; '.join(clauses)}. Existing epochs stay as they are, and this code cannot "
            "continue them. Start the code that created the checkpoint, or give this code a new "
            "checkpoint, which begins without state and reads the source again from where it is "
            f"told to begin. {NOTHING_WRITTEN}"
        )


def _transforms(frame: DataFrame) -> bool:
    names = (node.getClass().getSimpleName() for node in nodes(plan_of(frame)))
    return any(name.startswith("TransformWithState") for name in names)


def _refuse_store(query: str, recorded: str | None, checkpoint: str) -> None:
    kept = "the HDFS-backed state store, which keeps one table of keys, and this query's operators"
    if recorded is not None:
        raise BadSetting(
            f"query {query!r}: checkpoint {checkpoint} was begun with {kept} need several. Spark "
            f"cannot change the state store of a checkpoint: give a new one. {NOTHING_WRITTEN}"
        )
    settings = ", ".join(f'"{key}": "{value}"' for key, value in ROCKSDB_STORE.items())
    raise BadSetting(
        f"query {query!r}: this session has {kept} need several (transformWithState). Set RocksDB "
        f"before the start, with spark.conf.set() or when the session is built: {settings}; "
        f"beadline.session() has them set. {NOTHING_WRITTEN}"
    )


def _planned(
    frame: DataFrame, output_mode: str, files: FileSystem, checkpoint: str
) -> tuple[StateOperator, ...] | None:
    """Return the operators that this plan would have; None if this Spark does not show them."""
    with tempfile.TemporaryDirectory(prefix="beadline-state-") as folder:
        # An epoch that Spark has planned; otherwise it would need the state of the one before.
        (Path(folder) / "offsets").mkdir()
        (Path(folder) / "offsets" / "0").touch()
        try:
            conf = offset_conf(files, checkpoint)
            _plan(frame, output_mode, conf, (Path(folder) / STATE_FOLDER).as_uri())
        except (Py4JError, PySparkException, TypeError) as error:
            # Not part of Spark's public API. Spark will report the same problem in the epoch.
            logger.warning(
                "the state of this query cannot be compared with its checkpoint before the start "
                "(Spark %s: %s); if it has changed, the first epoch fails",
                frame.sparkSession.version,
                type(error).__name__,
            )
            logger.debug("the state of the plan is not known before it runs: %s", error)
            return None
        uri = qualify(folder)
        return read_operators(open_files(uri), uri)


def _plan(frame: DataFrame, output_mode: str, conf: dict[str, str], folder: str) -> None:
    """Have Spark plan a first epoch whose state is in a separate folder."""
    session = frame.sparkSession
    jvm: Any = session.sparkContext._jvm
    cloned = session._jsparkSession.cloneSession()
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.cbo.enabled": "false",
        "spark.sql.requireAllClusterKeysForDistribution": "false",
        **conf,
    }
    if "spark.sql.shuffle.partitions" in conf:
        settings[_STATE_PARTITIONS] = conf["spark.sql.shuffle.partitions"]
    for key, value in settings.items():
        cloned.conf().set(key, value)
    streaming = jvm.org.apache.spark.sql.execution.streaming
    modes = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    none = jvm.scala.Option.empty()
    empty = jvm.scala.collection.mutable.HashMap
    execution = streaming.runtime.IncrementalExecution(
        cloned,
        frame._jdf.queryExecution().analyzed(),
        modes.apply(output_mode),
        folder,
        jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(),
        0,
        none,
        streaming.checkpointing.OffsetSeqMetadata.apply(0, 0, cloned.conf()),
        streaming.runtime.WatermarkPropagator.noop(),
        True,
        empty(),
        empty(),
        jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL(),
        False,
    )
    execution.executedPlan()
