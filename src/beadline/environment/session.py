"""A Spark session with settings that are safe for epochs.

Beadline runs on any session; this one is for users who have none yet: the CLI, the demo, job files
and tests. What the caller, `spark-submit` or `spark-defaults.conf` says always wins over the
defaults here. `stream.py` checks, before a query starts, the settings that would break a rule.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

from beadline.environment.jars import PACKAGES, require_connector, with_connectors
from beadline.environment.java import require_java
from beadline.environment.quiet import jvm_options
from beadline.errors import JarsUnavailable
from beadline.shared.options import option_text
from beadline.state.backend import ROCKSDB_STORE

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

Setting = str | int | float | bool

# Four attempts, as on a cluster: with `local[*]` one killed Python worker ends the query.
_MASTER = "local[*,4]"
_ONE_ATTEMPT = "local[*]"  # Spark's own default, which the JVM reports as if it were set
LOCAL_FILES = "spark.hadoop.fs.AbstractFileSystem.file.impl"
NO_CHECKSUMS = "org.apache.hadoop.fs.local.RawLocalFs"
_DEFAULTS = {
    "spark.master": _MASTER,
    # A replay must divide an epoch into the same parts, which adaptive plans may change.
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    # A scalar Python UDF directly on columnar files hangs forever in PySpark 4.2.0.
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # The cost of state depends on what changed in an epoch and not on its size, and each run of an
    # epoch uses its own file names, so a late task cannot damage another run's files.
    **ROCKSDB_STORE,
    # No checksum file for every small file of a local checkpoint: some 20 ms less per epoch.
    LOCAL_FILES: NO_CHECKSUMS,
}
# Python workers talk to Spark over a Unix socket: on TCP every task waits for delayed acks, which
# made an epoch of 8 parts three times as long. But the socket's path must be short, and Spark
# creates it in the temporary folder.
UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
UNIX_SOCKET_FOLDER_LENGTH_MAX = 60
# A local Spark talks only to itself: no open port, no trouble with host names or VPNs.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default of 200 is for a cluster; here each would be a task of its own, nearly empty.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


# Two signatures, or a type checker would take `**conf` of numbers for a list of connectors.
@overload
def session(app_name: str, **conf: Setting) -> SparkSession: ...
@overload
def session(app_name: str, connectors: Collection[str], **conf: Setting) -> SparkSession: ...
def session(app_name: str, connectors: Any = (), **conf: Setting) -> SparkSession:
    """Return the active Spark session, or build a local one.

    Settings have dots in their names: `session("orders", **{"spark.driver.memory": "2g"})`. On an
    active session those that differ are set, and Spark refuses those that can no longer be changed.
    Raises `JavaProblem`, with the fix, where Spark could not start.

    `connectors=("kafka",)` puts the jars of Spark's own connector on the class path, in addition to
    those that you name yourself (`beadline.environment.jars` for a session of your own). They
    cannot be added to a Spark that already runs without them: `JarsUnavailable` then says what to
    do.
    """
    from pyspark.sql import SparkSession

    names: tuple[str, ...] = (connectors,) if isinstance(connectors, str) else tuple(connectors)
    asked = {key: option_text(value) for key, value in conf.items()}
    active = SparkSession.getActiveSession()
    if active is not None:
        for name in names:
            require_connector(active, name)
        for key, value in asked.items():
            if active.conf.get(key, None) != value:
                active.conf.set(key, value)
        return active
    require_java()
    # Workers must run the Python that the driver runs, not the first `python3` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not _jvm_runs():
        asked = with_connectors(asked, names)
    with _saying_what_was_fetched(asked, conf):
        settings = _settings(asked).setAppName(app_name)
    spark = SparkSession.builder.config(conf=settings).getOrCreate()
    try:
        for name in names:
            require_connector(spark, name)
    except BaseException:
        spark.stop()
        raise
    _write_no_checksums(spark)
    return spark


def _write_no_checksums(spark: SparkSession) -> None:
    """The same for Hadoop's other interface to local files, which has no setting for it.

    Existing checksums are still compared, and those of a file that is replaced are removed: with
    `fs.file.impl` set to `RawLocalFileSystem` they would stay, and be wrong.
    """
    if spark.sparkContext.getConf().get(LOCAL_FILES) != NO_CHECKSUMS:
        return
    jvm: Any = spark.sparkContext._jvm
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf).setWriteChecksum(
        False
    )


def _jvm_runs() -> bool:
    """Whether this process already has its JVM, from an earlier session or `spark-submit`.

    Its class path is then fixed: either the connectors are on it, or they cannot be added.
    """
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _saying_what_was_fetched(asked: dict[str, str], conf: Mapping[str, Setting]) -> Iterator[None]:
    """PySpark says that the JVM is gone; only the output above says that a download failed."""
    from pyspark.errors import PySparkRuntimeError

    try:
        yield
    except PySparkRuntimeError as error:
        if asked.get(PACKAGES) == conf.get(PACKAGES):
            raise
        raise JarsUnavailable(
            f"Spark did not start. Without `mvn` on the PATH, Spark had to download "
            f"{asked[PACKAGES]}; its output above says whether that is the reason. Install Maven, "
            "or set BEADLINE_CACHE to a folder that holds the jars. Nothing was written."
        ) from error


def _settings(asked: dict[str, str]) -> SparkConf:
    """Apply the defaults below what was asked for here and what is configured elsewhere."""
    from pyspark import SparkConf, SparkContext

    explicit = SparkConf(loadDefaults=False).setAll(list(asked.items()))
    # Only the JVM has read `spark-submit`'s arguments and `spark-defaults.conf`, and its memory is
    # fixed at its start: start it with what was asked for, then look.
    if not _jvm_runs():
        from pyspark.java_gateway import launch_gateway

        with jvm_options() as options:
            gateway = launch_gateway(explicit, options)  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway)
    settings = SparkConf().setAll(list(asked.items()))
    if "spark.master" not in asked and settings.get("spark.master") == _ONE_ATTEMPT:
        settings.setMaster(_MASTER)
    for key, value in _DEFAULTS.items():
        settings.setIfMissing(key, value)
    if len(tempfile.gettempdir()) <= UNIX_SOCKET_FOLDER_LENGTH_MAX:
        settings.setIfMissing(UNIX_SOCKETS, "true")
    if (settings.get("spark.master") or "").startswith("local"):
        for key, value in LOCAL.items():
            settings.setIfMissing(key, value)
    return settings
