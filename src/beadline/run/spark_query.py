"""Spark's own query beneath ours, and its next one where an older driver got in its way.

Two drivers of one query may run at once for a moment. The log fences the older one, but Spark's own
logs know no fence: whichever Spark comes second to a file of theirs fails ("Concurrent update to
the log"), and that may be the newer driver's. An older driver can do so only a few times: after the
next epoch that it plans it is called back, and fenced. So the newer one waits a moment, and starts
Spark's query again, which reads those logs anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

# What Spark says where somebody else wrote to its checkpoint: while it ran, and at its first start.
_CONFLICTS = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Concurrent update to the log",
    "Multiple streaming queries are concurrently using",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
)
PAUSES_S = (0.2, 0.4, 0.8, 1.5, 2.0, 2.0, 2.0)  # between the restarts of one epoch
_starting = threading.Lock()

Judge = Callable[[BaseException, bool], None]


class SparkQuery:
    """One query to its user, and one Spark query after the other beneath it."""

    def __init__(
        self,
        writer: DataStreamWriter,
        session: SparkSession,
        conf: dict[str, str],
        judge: Judge,
        use: Callable[[StreamingQuery | None], None],
    ) -> None:
        """``judge`` raises, unless Spark is to be started again after an error.

        It is told whether there is still a try left. ``conf`` is what Spark is told for this query
        alone; ``use`` is told which Spark query it is, None while that is not known.
        """
        self._writer = writer
        self._session = session
        self._conf = conf
        self._judge = judge
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

    def carried_through(self) -> None:
        """An epoch was carried through: whoever was in the way is out of it."""
        self._tries = 0

    def stop(self) -> None:
        """End Spark's query, and start none again."""
        self._stopping.set()
        with self._changing:
            self.query.stop()

    def _watch(self) -> None:
        try:
            while self._conflicted() and not self._stopping.is_set():
                with self._changing:
                    if not self._stopping.is_set():
                        self._started()
        except BaseException as error:  # noqa: BLE001 (kept for whoever waits)
            self.failed = error
        finally:
            self.ended.set()

    def _conflicted(self) -> bool:
        """Wait for Spark's query to end; whether it did over another driver's files."""
        try:
            self.query.awaitTermination()
        except StreamingQueryException as error:
            self._pause(error)
            return True
        return False

    def _started(self) -> bool:
        """Start Spark's query; False if somebody got in the way of that already."""
        try:
            self._use(None)  # or the first epoch of the next would be taken for one of the last
            with _set(self._session, self._conf):
                self._query = self._writer.start()
            self._use(self._query)
        except Exception as error:  # noqa: BLE001 (raised on, unless it is a conflict)
            self._pause(error)
            return False
        return True

    def _pause(self, error: Exception) -> None:
        """Wait for the other driver's end, or raise what there is to raise."""
        self._stopping.wait(PAUSES_S[self._tries] if is_conflict(error) and self._left else 0)
        self._judge(error, self._left)
        self._tries += 1

    @property
    def _left(self) -> bool:
        return self._tries < len(PAUSES_S)


def is_conflict(error: BaseException) -> bool:
    """Whether Spark ended because another driver writes to the same checkpoint."""
    text = str(error)
    return any(sign in text for sign in _CONFLICTS)


def start_settings(session: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return what Spark is told for a query of ours alone.

    Adaptive execution is off: otherwise a replay could cut an epoch into other parts (rule 8).
    """
    return {"spark.sql.adaptive.enabled": "false"}


@contextmanager
def _set(session: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Start a query with settings of its own: Spark clones the session's at start."""
    with _starting:
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
