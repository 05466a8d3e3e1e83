"""Why Spark failed, in one sentence.

An error from Spark is a Python traceback in a Java stack trace in a dump of the plan, and its last
cause seldom helps: for a Python worker that was killed, it is a broken pipe. Known causes are found
by a table, wherever they appear in the text; otherwise the exception of a Python function is
reported, and otherwise Java's innermost cause. The protocol asks for it (``Batch.reason``), and
says itself what it means for the epoch.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError

from beadline.errors import BeadlineError, Fenced, SparkFailed, SparkGone

if TYPE_CHECKING:
    from pyspark import SparkContext

_LENGTH_MAX = 500
_PLAN = "\n=== Streaming Query ==="
_MEANS = (
    "Every epoch that is decided is complete or finished by the next start, and nothing of the "
    "others shows."
)
_STOPPED = "Spark was stopped under the running query (spark.stop()): call query.stop() before it"


@dataclass(frozen=True)
class KnownCause:
    """A cause that a text shows, and what to say about it; groups of the pattern are included.

    With ``in_python``, so is the exception of a Python function that failed because of it.
    """

    pattern: str
    says: str
    in_python: bool = False

    def sentence(self, text: str) -> str | None:
        """Return the sentence, if this is the cause."""
        found = re.search(self.pattern, text)
        if found is None:
            return None
        more = ": ".join(group.strip() for group in found.groups() if group)
        more = (self.in_python and _from_python(text)) or more
        return self.says + (f": {more}" if more else "")


_OLD_OR_NEW = (
    "start the code that created the checkpoint, or give this code a new checkpoint, which begins "
    "without state"
)
KNOWN_CAUSES = (
    KnownCause(
        r"\[((?:STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|"
        r"STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE|"
        r"STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE|STATE_STORE_INVALID_CONFIG_AFTER_RESTART|"
        r"STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)\] [^\n]{0,240})",
        f"the job keeps other state than its checkpoint holds; {_OLD_OR_NEW}",
    ),
    KnownCause(
        r"\[((?:CANNOT_LOAD_STATE_STORE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY|"
        r"STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED)[.\w]*\] [^\n]{0,240})",
        "the state in the checkpoint cannot be read: files below its folder `state` were deleted "
        "or damaged, so restore the checkpoint from a backup, as a whole",
    ),
    KnownCause(
        r"\[((?:STATE_STORE_COMMIT_VALIDATION_FAILED|STATE_STORE_OPERATION_OUT_OF_ORDER)\] "
        r"[^\n]{0,240})",
        "not every part of the state was carried forward in the epoch",
    ),
    KnownCause(
        r"\[UNSUPPORTED_FEATURE\.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS\]",
        "transformWithState needs the RocksDB state store, which "
        "spark.sql.streaming.stateStore.providerClass names",
    ),
    KnownCause(
        r"\[(?:STATEFUL_PROCESSOR|STATE_STORE_HANDLE|TRANSFORM_WITH_STATE)_\w+\] ([^\n]{0,300})",
        "a stateful processor used its state in a way that it does not support",
    ),
    KnownCause(
        r"No space left on device|Disk quota exceeded",
        "a disk is full (No space left on device): make room where the checkpoint, the sink's own "
        "files and spark.local.dir are",
        in_python=True,  # it names the file
    ),
    KnownCause(
        # Depends on which thread notices first: the one that reads from the worker, or writes to
        # it.
        r"Python worker exited unexpectedly|"
        r"(?s:(?:EOFException|Broken pipe|Connection reset).*?\bapi\.python\.)",
        "a Python worker process died: it was killed (by hand, or by the operating system for lack "
        "of memory) or crashed in native code",
    ),
    KnownCause(
        r"Python worker failed to connect back",
        "a Python worker did not start within the ten seconds that Spark gives it, several times: "
        "the machine is too busy, or the Python in spark.pyspark.python does not start",
    ),
    KnownCause(
        r"SparkContext (?:was|has been) (?:shut ?down|stopped)|stopped SparkContext",
        _STOPPED,
    ),
    KnownCause(
        r"(?s)(Some data may have been lost[^;.\n]*)(?:.*?Reason: ([^\n]+))?",
        "the source no longer has all records of the epoch",
    ),
)
# For the worker that prepares a stateful operator Spark waits ten seconds, whatever its settings.
_SLOW_WORKER = "Python worker failed to connect back"
_GONE = "Spark's JVM has ended: it was killed, or ran out of memory (its own output says more)"
# What Spark says if another driver has written to its checkpoint, and whether that proves it.
OTHER_DRIVER = {
    "CONCURRENT_STREAM_LOG_UPDATE": True,
    "Concurrent update to the log": True,
    "Concurrent update to the commit log": True,
    "Multiple streaming queries are concurrently using": True,
    # At a first start, about files that the other is about to write; they may also be deleted.
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": False,
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": False,
}


def reason(error: BaseException, context: SparkContext | None = None) -> str:
    """Say in one line what went wrong; ``context`` is the Spark in which it did."""
    if is_gone(error):
        return _GONE
    if is_stopped(context):
        return _STOPPED
    text = (str(error) or repr(error)).partition(_PLAN)[0]
    for known in KNOWN_CAUSES:
        if (said := known.sentence(text)) is not None:
            return said[:_LENGTH_MAX]
    return _from_python(text) or _from_java(text)


def explain(error: BaseException | None, query: str) -> BaseException | None:
    """Return the error with which Spark ended a query, outside of an epoch, as ours if known."""
    if error is None or isinstance(error, BeadlineError):
        return error
    text = str(error).partition(_PLAN)[0]
    if any(proof and sign in text for sign, proof in OTHER_DRIVER.items()):
        return Fenced(
            f"query {query!r}: another driver of this query has planned or finished the same epoch "
            "in Spark's own log, so a newer start has taken over. This one stops, and has decided "
            "nothing that the other does not know about."
        )
    if is_gone(error):
        return SparkGone(f"query {query!r}: {_GONE}. {_MEANS}")
    said = next(filter(None, (known.sentence(text) for known in KNOWN_CAUSES)), None)
    if said is None:
        return error
    kind = SparkGone if said == _STOPPED else SparkFailed
    return kind(f"query {query!r}: Spark ended it: {said}. {_MEANS}")


def may_pass(error: BaseException) -> bool:
    """Whether Spark's query may succeed if it is started again.

    Another driver wrote to the same checkpoint, or the machine was too busy to start a worker.
    """
    text = str(error)
    return any(sign in text for sign in (*OTHER_DRIVER, _SLOW_WORKER))


def stopped(query: str) -> SparkGone:
    """Return the error of a query whose Spark was stopped while it ran."""
    return SparkGone(f"query {query!r}: {_STOPPED}. {_MEANS}")


def is_gone(error: BaseException) -> bool:
    """Whether Py4J's other end does not answer; a sink's own server may also refuse connections."""
    if isinstance(error, Py4JNetworkError):
        return True
    if type(error) is Py4JError:
        return "Answer from Java side is empty" in str(error)
    frames = traceback.walk_tb(error.__traceback__)
    return isinstance(error, ConnectionError) and any(
        frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in frames
    )


def is_stopped(context: Any) -> bool:
    """Whether ``spark.stop()`` was called: then errors come from what is no longer there."""
    return context is not None and getattr(context, "_jsc", None) is None


def _from_python(text: str) -> str | None:
    """The exception at the end of a Python trace; its frames are indented, and it is not."""
    _, python, trace = text.rpartition("Traceback (most recent call last):")
    said = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
    return said[0][:_LENGTH_MAX] if python and said else None


def _from_java(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (r"Caused by: ", r"[\w.]+Error: ", r".*Exception: "):
        found = [line for line in lines if re.match(pattern, line)]
        if found:
            return found[-1][:_LENGTH_MAX]
    return lines[0][:_LENGTH_MAX] if lines else "an error without a text"
