"""Spark's own query beneath ours, and its successor if what ended it may pass.

Two drivers of one query may run at once for a moment. The log fences the older one, but Spark's own
logs are not fenced: the Spark that is second to write one of their files fails ("Concurrent update
to the log"), and that may be the newer driver's. An older driver can interfere only a few times:
after the next epoch that it plans it is called back, and fenced. So the newer one waits a moment,
and starts Spark's query again, which reads those logs again. So it does if the machine was too busy
to start a Python worker in the ten seconds that Spark allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from beadline.spark.checks import switched_off
from beadline.spark.conf import is_set
from beadline.spark.failures import may_pass
from beadline.spark.plan import has_own_log
from beadline.spark.state import state_settings
from beadline.state.backend import session_settings

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_MANAGERS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",  # up to 4.0
)
_LOOK_EVERY_S = 1.0
_END_TIMEOUT_S = 30.0
PAUSES_S = (0.2, 0.4, 0.8, 1.5, 2.0, 2.0, 2.0)  # between the restarts of one epoch

OnSparkError = Callable[[BaseException, bool], None]


class SparkQuery:
    """One query to its user, and one or more Spark queries, one after another, beneath it."""

    def __init__(
        self,
        writer: DataStreamWriter,
        session: SparkSession,
        conf: dict[str, str],
        judge: OnSparkError,
        is_fenced: Callable[[], bool],
        use: Callable[[StreamingQuery | None], None],
    ) -> None:
        """``judge`` raises, unless Spark should be started again after an error.

        It is told whether there is a try left. ``conf`` holds Spark settings for this query only;
        ``is_fenced`` is asked now and then, and ends the query; ``use`` is told which Spark query
        it is, None while that is not known.
        """
        self._writer = writer
        self._session = session
        self._conf = conf
        self._judge = judge
        self._is_fenced = is_fenced
        self._use = use
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._tries = 0
        self._query: StreamingQuery | None = None
        self.ended = threading.Event()
        self.failed: BaseException | None = None

    @property
    def query(self) -> StreamingQuery:
        """Spark's newest."""
        assert self._query is not None, "the query has not started"
        return self._query

    def start(self) -> None:
        """Start Spark's query, and watch over it."""
        while not self._started():
            pass
        InheritableThread(target=self._watch, name="beadline-spark", daemon=True).start()
        threading.Thread(target=self._look, name="beadline-fence", daemon=True).start()

    def carried_through(self) -> None:
        """An epoch was completed: whatever ended Spark's query before has passed."""
        self._tries = 0

    def stop(self) -> None:
        """End Spark's query, and do not start another."""
        self._stopping.set()
        with self._changing:
            self.query.stop()
        self.ended.wait(_END_TIMEOUT_S)  # later calls must see that it has ended

    def _look(self) -> None:
        """Without new rows Spark does not call back, and only this notices a newer start."""
        while not self.ended.wait(_LOOK_EVERY_S):
            if self._is_fenced():
                self.stop()
                return

    def _watch(self) -> None:
        try:
            while self._may_start_again() and not self._stopping.is_set():
                with self._changing:
                    if not self._stopping.is_set():
                        self._started()
        except BaseException as error:  # noqa: BLE001 (kept for awaitTermination())
            self.failed = error
        finally:
            self.ended.set()

    def _may_start_again(self) -> bool:
        """Wait for Spark's query to end; return whether what ended it may pass."""
        try:
            self.query.awaitTermination()
        except StreamingQueryException as error:
            self._pause(error)
            return True
        return False

    def _started(self) -> bool:
        """Start Spark's query; False if that failed over something that may pass."""
        try:
            self._use(None)  # or the next one's first epoch would be taken for the last one's
            # Spark clones the session's settings when a query starts.
            with session_settings(self._session, self._conf):
                self._query = self._writer.start()
            self._use(self._query)
        except Exception as error:  # noqa: BLE001 (raised again, unless it may pass)
            self._pause(error)
            return False
        return True

    def _pause(self, error: Exception) -> None:
        """Wait for what may pass, or raise the error."""
        self._stopping.wait(PAUSES_S[self._tries] if may_pass(error) and self._left else 0)
        self._judge(error, self._left)
        self._tries += 1

    @property
    def _left(self) -> bool:
        return self._tries < len(PAUSES_S)


def start_settings(frame: DataFrame, checkpoint: str) -> dict[str, str]:
    """Return the Spark settings for this query only.

    Adaptive execution is off: otherwise a replay could divide an epoch into other parts (rule 8).
    State stays in the format with which its checkpoint was begun.

    On a local disk, Spark writes its own two logs through Hadoop's `FileSystem`: by default it uses
    `FileContext`, which starts two processes (`readlink`, `chmod`) for each file. Both check
    whether a name is free and then rename, so neither guarantees one winner if two drivers plan the
    same epoch at the same moment, and the faster one has two winners more often (8 of 300 such
    races, against 1). `planned_offsets` detects that; but not in the log of a file source, because
    the offsets name only the entry, so queries with a file source keep Spark's default.
    """
    session = frame.sparkSession
    conf = dict.fromkeys(switched_off(session), "false")
    conf.update(state_settings(frame, checkpoint))
    local = checkpoint.startswith("file:") and not has_own_log(frame)
    manager = _local_manager(session) if local and not is_set(session, FILE_MANAGER) else None
    return conf if manager is None else {**conf, FILE_MANAGER: manager}


def _local_manager(session: SparkSession) -> str | None:
    """Return the class that is faster on a local disk, if this Spark has it; else None."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    for name in _LOCAL_MANAGERS:
        try:
            jvm.java.lang.Class.forName(name)
        except Py4JError:
            continue
        return name
    return None
