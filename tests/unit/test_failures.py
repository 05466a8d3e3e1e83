"""One sentence out of Spark's errors, of which each text here was seen."""

from __future__ import annotations

import socket

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError

from beadline.errors import Fenced, SparkFailed, SparkGone
from beadline.spark.failures import OTHER_DRIVER, explain, is_gone, may_pass, reason

JOB = """An error occurred while calling o1.collectAsList.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: {cause}
"""
RUNNER = "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala)"
KILLED = f"""org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
{RUNNER}
Caused by: java.io.EOFException"""
PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 1, in f
ValueError: bad row

{frames}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB.format(cause=KILLED), "a Python worker process died"),
        (JOB.format(cause=f"java.io.IOException: Broken pipe\n{RUNNER}"), "a Python worker"),
        (
            JOB.format(cause=f"java.net.SocketException: Connection reset\n{RUNNER}"),
            "a Python work",
        ),
        (JOB.format(cause="java.io.IOException: No space left on device"), "a disk is full"),
        (
            JOB.format(cause="java.lang.IllegalStateException: x\nSparkContext was shut down"),
            "Spark",
        ),
        (JOB.format(cause=PYTHON.format(frames=RUNNER)), "ValueError: bad row"),
        (
            JOB.format(cause="java.lang.ArithmeticException: / by zero"),
            "Caused by: java.lang.Arith",
        ),
        ("java.net.SocketException: Connection reset\n\tat of.another.Server", "java.net.Socket"),
        ("Some data may have been lost because\n Reason: out of range", "the source no longer has"),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_is_one_sentence(text: str, said: str) -> None:
    found = reason(RuntimeError(text))
    assert found.startswith(said), found
    assert "\n" not in found


def test_a_server_of_a_sink_that_refuses_is_not_the_jvm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError) as sinks:
        socket.create_connection(("127.0.0.1", port))
    assert not is_gone(sinks.value)
    assert "refused" in reason(sinks.value)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.raises((ConnectionRefusedError, Py4JNetworkError)) as java:
        gateway.jvm.System.currentTimeMillis()
    assert is_gone(java.value)
    assert reason(java.value).startswith("Spark's JVM has ended")


def test_what_spark_says_outside_of_an_epoch() -> None:
    fenced = explain(RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update"), "job")
    assert isinstance(fenced, Fenced)
    assert fenced.exit_code == 4
    full = explain(RuntimeError("No space left on device\n=== Streaming Query ===\nplan"), "job")
    assert isinstance(full, SparkFailed)
    assert "query 'job'" in str(full)
    assert "plan" not in str(full)
    assert "decided" in str(full), "what it means for the data"
    assert isinstance(explain(Py4JError("Answer from Java side is empty"), "job"), SparkGone)
    other = RuntimeError("something else")
    assert explain(other, "job") is other


@pytest.mark.parametrize(("sign", "proof"), OTHER_DRIVER.items())
def test_signs_of_another_driver(sign: str, proof: bool) -> None:
    """Each is worth another try; what a deleted file may show as well does not prove it."""
    error = RuntimeError(f"[{sign}] while the epoch was planned")
    assert may_pass(error)
    assert isinstance(explain(error, "orders"), Fenced) is proof
    assert not may_pass(RuntimeError("another reason"))


def test_a_worker_that_started_too_slowly_is_worth_another_try() -> None:
    error = RuntimeError("Python worker failed to connect back.")
    assert may_pass(error)
    full = explain(error, "orders")
    assert isinstance(full, SparkFailed)
    assert "did not start within the ten seconds" in str(full)
