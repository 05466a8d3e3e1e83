"""A TOML job and a server that goes away: the restart strategy waits for it, and no row is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from beadline.testing.servers import PostgresServer
from tests.spark.test_cli_run import Run, objects, run
from tests.spark.test_job_toml import job_file

__all__ = ["run"]  # the fixture

JOB = """
[sources.ticks]
type = "rate"
rows_per_second = 100

[query]
name = "ticks"
checkpoint = "checkpoint"
every = "100 milliseconds"
sql = "SELECT value FROM ticks"

[[query.sinks]]
type = "postgres"
dsn = "${POSTGRES}"
table = "${TICKS}"
timeout_s = 0.5

[restart]
strategy = "exponential-backoff"
initial = "200 ms"
max = "1 second"
"""


def test_a_server_that_is_away_for_a_while(
    run: Run, postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = f"ticks_{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("POSTGRES", postgres_server.dsn)
    monkeypatch.setenv("TICKS", ticks)
    with closing(postgres_server.connect()) as connection:
        connection.execute(f"CREATE TABLE {ticks} (value bigint)")
        connection.commit()

    def values() -> list[Any]:
        with closing(postgres_server.connect()) as connection:
            return [row[0] for row in connection.execute(f"SELECT value FROM {ticks} ORDER BY 1")]

    def wait_for_more(than: int) -> None:
        until = time.monotonic() + 90
        while len(values()) <= than and time.monotonic() < until:
            time.sleep(0.1)

    def trouble() -> None:
        try:
            wait_for_more(0)
            postgres_server.kill()
            time.sleep(6)
            postgres_server.restart()
            wait_for_more(len(values()) + 200)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=trouble)
    thread.start()
    code, out, err = run(job_file(tmp_path, JOB), "--json")
    thread.join()
    assert code == 0, out + err
    events = objects(out)
    restarts = [event["error"] for event in events if event["event"] == "restarting"]
    # The epoch fails; then the start itself, because the sink cannot be reached.
    assert "BadSink" in restarts[1:]
    assert postgres_server.dsn not in out
    assert events[-1]["generation"] > 1
    found = values()
    assert found == list(range(len(found)))
