"""`beadline run` in a process of its own: signals, and what Spark itself prints.

Each of these tests costs a Spark start, so there are few.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from beadline.cli.run import Stop
from beadline.jobs.loading import build_stream, load_job, open_job
from tests.conftest import QUICK_JVM
from tests.spark.jobs import write_input
from tests.spark.test_cli_run import ids, job_file, objects

SLOW = """
    import time
    from pyspark.sql import functions as F
    CONF = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
    @F.udf("long")
    def slow(id):
        if id >= 10:
            (HERE / "slow").touch()
            time.sleep(300)
        return id
    def job(spark):
        frame = rows(spark).withColumn("id", slow("id"))
        return exactly_once(frame, "job").to(SqliteSink(HERE / "o.db", "t"))
    """


def start_process(*arguments: str | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JVM}  # nothing of an earlier test's
    return subprocess.Popen(
        [sys.executable, "-m", "beadline", "run", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)


def test_ctrl_c_aborts_what_is_undecided(spark: SparkSession, tmp_path: Path) -> None:
    """In the middle of the second epoch's prepare; the first is committed and stays so."""
    expected = write_input(tmp_path / "in", files=2)
    job = job_file(tmp_path, SLOW)
    process = start_process(job, "--json")
    wait_for((tmp_path / "slow").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    ended = objects(out)[-1]
    assert (ended["event"], ended["why"], ended["epochs"]) == ("ended", "stopped", 1)
    assert ids(tmp_path) == expected[:10]
    staged = [path for path in (tmp_path / ".o.db.beadline").rglob("*") if path.is_file()]
    assert staged == []
    # The next start is given the same epoch again.
    job.write_text(job.read_text().replace("time.sleep(300)", "pass"))
    stream = build_stream(load_job(open_job(job)), spark)
    query = stream.start(str(tmp_path / "checkpoint"), available_now=True)
    assert query.awaitTermination(120)
    assert query.generation == 2
    assert ids(tmp_path) == expected


def test_a_failing_epoch_exits_with_1_and_a_sentence(tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=2)
    code = SLOW.replace("time.sleep(300)", 'raise ValueError("bad id")')
    process = start_process(job_file(tmp_path, code))
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "epoch 0 committed" in out
    assert re.search(r"^PrepareFailed: .*epoch 1.*ValueError: bad id", err, re.MULTILINE)
    # PySpark's worker daemon may complain of a pipe; nobody else may, and nobody in Java.
    assert not re.search(r"py4j|org\.apache|\.scala|\[Stage", err, re.IGNORECASE), err


def test_both_signals_stop_and_a_second_ctrl_c_leaves_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        stop = Stop()
        before = signal.getsignal(number)
        with stop.on_signals():
            assert not stop.asked
            signal.raise_signal(number)
            assert stop.asked
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(number) is before
