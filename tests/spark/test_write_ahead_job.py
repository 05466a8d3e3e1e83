"""``WriteAheadSink`` on Spark: the example's shop gets each order once, whatever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import at_least_once, exactly_once
from beadline.errors import GuaranteeRefused, WrongCheckpoint
from beadline.sinks import FileSink, WriteAheadSink
from beadline.sinks.write_ahead import Delivery
from examples import write_ahead_http
from examples.write_ahead_http import Shop, job, sold
from tests.spark.jobs import read, run, run_and_die, write_input

ROOT = Path(__file__).parents[2]
got: list[int] = []


def keep(delivery: Delivery) -> None:
    got.extend(row["id"] for row in delivery.rows)


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    got.clear()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    server = Shop(str(tmp_path / "shop.db"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def orders(folder: Path, files: int = 3) -> list[str]:
    (folder / "in").mkdir()
    for number in range(files):
        lines = [json.dumps({"id": i, "what": f"{number}-{i}"}) for i in range(10)]
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
    return sorted(f"{number}-{i}" for number in range(files) for i in range(10))


@pytest.mark.parametrize(
    "point", ["decide.before", "decide.after", "ledger.before", "ledger.after"]
)
def test_each_order_once_whatever_dies(
    spark: SparkSession, shop: Shop, tmp_path: Path, point: str
) -> None:
    wanted = orders(tmp_path)
    stream = job(spark, str(tmp_path / "in"), shop.url, str(tmp_path / "wal"))
    run_and_die(stream, tmp_path, point)
    run(stream, tmp_path)
    run(stream, tmp_path)
    assert sold(tmp_path / "shop.db") == wanted


def test_a_shop_that_is_killed_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    wanted = orders(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def serve() -> subprocess.Popen[bytes]:
        script = str(ROOT / "examples" / "write_ahead_http.py")
        command = [sys.executable, script, "serve", str(tmp_path / "shop.db"), str(port)]
        server = subprocess.Popen(command)
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return server
            time.sleep(0.02)
        raise AssertionError("the shop does not open")

    server = serve()
    try:
        url = f"http://127.0.0.1:{port}/orders"
        stream = job(spark, str(tmp_path / "in"), url, str(tmp_path / "wal"))
        query = stream.start(str(tmp_path / "checkpoint"), available_now=True)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(10)
        time.sleep(1)
        server = serve()
        assert query.awaitTermination(120)
    finally:
        server.kill()
        server.wait(10)
    assert sold(tmp_path / "shop.db") == wanted


def test_exactly_once_takes_it_only_with_a_promise_or_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = write_input(tmp_path / "in", files=2)
    stream = exactly_once(read(spark, tmp_path / "in"), "job")
    sink = WriteAheadSink(keep, tmp_path / "wal")
    with pytest.raises(GuaranteeRefused, match=r"sink 'keep' is at-least-once.*honours_ids=True"):
        stream.to(sink).start(str(tmp_path / "checkpoint"))
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "wal").exists()
    run(stream.to(sink, allow="at-least-once"), tmp_path)
    assert sorted(got) == ids


def test_rows_arrive_in_order_of_epochs(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", files=4)
    sink = WriteAheadSink(keep, tmp_path / "wal", batch_rows=3, honours_ids=True)
    run(exactly_once(read(spark, tmp_path / "in"), "job").to(sink), tmp_path)
    assert got == ids


def test_a_checkpoint_that_was_deleted_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    sink = WriteAheadSink(keep, tmp_path / "wal", honours_ids=True)
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(sink)
    run(stream, tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(WrongCheckpoint, match=r"delete .*wal/keep/state/job~\*"):
        run(stream, tmp_path)


def test_at_least_once_after_a_crash_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", files=2)
    sink = WriteAheadSink(keep, tmp_path / "wal", batch_rows=2)
    stream = at_least_once(read(spark, tmp_path / "in"), "job").to(sink)
    run_and_die(stream, tmp_path, "ledger.after", times=2)
    run(stream, tmp_path)
    assert sorted(set(got)) == ids
    assert len(got) <= len(ids) + 10


def not_seven(batch: Any) -> tuple[Any, str]:
    import pyarrow.compute as pc

    return pc.not_equal(batch["id"], 7), "seven is not sold here"


def test_rows_that_are_not_accepted_become_dead_letter_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = write_input(tmp_path / "in", files=1)
    sink = WriteAheadSink(keep, tmp_path / "wal", honours_ids=True, accepts=not_seven)
    dead_letter = FileSink(str(tmp_path / "dead-letter"))
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(sink, dead_letter=dead_letter)
    run(stream, tmp_path)
    assert sorted(got) == [i for i in ids if i != 7]
    (record,) = spark.read.parquet(str(tmp_path / "dead-letter")).collect()
    assert json.loads(record.row)["id"] == 7
    assert record.reason == "seven is not sold here"


def test_the_example_of_the_docs(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    """Its code, with the shop's address and folders that are there."""
    text = (ROOT / "docs" / "write-ahead.md").read_text("utf-8")
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_example"}
    wanted = orders(tmp_path)
    code = codes[0].replace("https://shop.example/orders", shop.url)
    code = code.replace("/data", str(tmp_path)).replace("Bearer …", write_ahead_http.TOKEN)
    source = spark.readStream.schema("id long, what string").json(str(tmp_path / "in"))
    exec(code, {**names, "orders": source})
    assert sold(tmp_path / "shop.db") == wanted
    for code in codes[1:]:
        exec(code, dict(names))
