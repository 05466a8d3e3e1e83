"""TOML job files without Spark: what they may hold, the environment, and every error's place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import BadSink, UsageError
from beadline.jobs.loading import load_job
from beadline.jobs.restart import ExponentialBackoff, NoRestart
from beadline.jobs.sources import Watermark
from beadline.jobs.toml_job import TomlJob, open_toml
from beadline.sinks import (
    ConsoleSink,
    FileSink,
    KafkaSink,
    PostgresSink,
    RedisSink,
    SqliteSink,
    WriteAheadSink,
)
from beadline.sinks.write_ahead import HttpEndpoint
from beadline.sources import SocketReceiver

JOB = """\
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "id long"

[[queries]]
name = "orders"
sql = "SELECT * FROM orders"
checkpoint = "checkpoint"

[[queries.sinks]]
type = "sqlite"
path = "o.db"
table = "t"
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))


def opened(folder: Path, text: str) -> TomlJob:
    path = folder / "job.toml"
    path.write_text(text)
    return open_toml(path)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as raised:
        opened(folder, text)
    message = str(raised.value)
    assert message.endswith("Nothing was written.")
    assert "?." not in message
    return message.removeprefix(f"{folder}/")


def changed(*changes: tuple[str, str]) -> str:
    text = JOB
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_job(tmp_path: Path) -> None:
    job = opened(tmp_path, JOB)
    assert not job.several
    assert (job.conf, job.connectors, job.restart) == ({}, (), NoRestart())
    (source,) = job.sources
    assert source.view == "orders"
    assert source.arguments == {
        "path": f"file:{tmp_path}/in",
        "format": "json",
        "schema": "id long",
    }
    (query,) = job.tables
    assert query.settings.checkpoint == f"file:{tmp_path}/checkpoint"
    assert query.sinks[0].sink == SqliteSink(tmp_path / "o.db", "t")


WHOLE = """\
[spark]
master = "local[2]"
sql.shuffle.partitions = 2
"spark.speculation" = false

[sources.events]
type = "kafka"
bootstrap_servers = "localhost:9092"
topic = "events"
starting = { events = { 0 = 23, 1 = -2 } }
columns = ["CAST(value AS STRING) AS value", "timestamp AS at"]
watermark = { column = "at", delay = "10 minutes" }

[sources.lines]
type = "journaled"
journal = "journal"
receiver = { type = "socket", host = "localhost", port = 9999 }

[sources.old]
type = "files"
path = "hdfs://far/in"
format = "csv"
schema = "a long"
options = { header = true }

[restart]
strategy = "exponential-backoff"
initial = "2 seconds"
multiplier = 2
attempts = 7

[[queries]]
name = "one"
function = "at_least_once"
allow = "at-most-once"
sql = "SELECT 1"
every = "1 second"
output_mode = "update"
retention = 7
drop = ["gone"]
options = { "some.option" = 3 }

[[queries.sinks]]
type = "kafka"
name = "clean"
topic = "clean"
bootstrap_servers = "localhost:9092"
transaction_timeout_s = 60
options = { "compression.type" = "zstd" }
rows = "SELECT value FROM epoch"
dead_letter = { type = "files", path = "letters" }

[[queries.sinks]]
type = "postgres"
dsn = "postgresql://localhost/shop"
table = "orders"
mode = "upsert"
key = "id"

[[queries.sinks]]
type = "redis"
url = "redis://localhost"
command = "xadd"
into = "orders"
staging = "staging"

[[queries]]
name = "two"
sql = "SELECT 2"

[[queries.sinks]]
type = "console"
rows = 5
allow = "at-least-once"

[[queries.sinks]]
type = "console"
rows = "SELECT 1 FROM epoch"
name = "other"
shared_disk = true

[[queries.sinks]]
type = "write_ahead"
name = "shop"
folder = "ahead"
deliver = { type = "http", url = "https://shop.example/orders", headers = { A = "b" } }
"""


def test_everything_that_a_job_may_hold(tmp_path: Path) -> None:
    job = opened(tmp_path, WHOLE)
    assert job.several
    assert job.conf == {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": 2,
        "spark.speculation": False,
    }
    assert job.connectors == ("kafka",)
    assert job.restart == ExponentialBackoff("2 seconds", multiplier=2.0, attempts=7)
    events, lines, old = job.sources
    assert events.arguments["starting"] == {"events": {0: 23, 1: -2}}
    assert events.shaping.watermark == Watermark("at", "10 minutes")
    assert lines.arguments["receiver"] == SocketReceiver("localhost", 9999)
    assert lines.arguments["journal"] == f"file:{tmp_path}/journal"
    assert old.arguments["path"] == "hdfs://far/in"
    assert old.arguments["header"] is True
    one, two = (table.settings for table in job.tables)
    assert (one.function, one.allow, one.retention) == ("at_least_once", "at-most-once", 7)
    assert (one.drop, one.options, one.output_mode) == (["gone"], {"some.option": 3}, "update")
    assert two.checkpoint is None
    kafka, postgres, redis = job.tables[0].sinks
    assert isinstance(kafka.sink, KafkaSink)
    assert kafka.sink.transaction_timeout_s == 60
    assert kafka.settings.name == "clean"
    assert kafka.settings.rows == "SELECT value FROM epoch"
    assert kafka.dead_letter == FileSink(f"file:{tmp_path}/letters")
    assert isinstance(postgres.sink, PostgresSink)
    assert postgres.sink.key == ("id",)
    assert isinstance(redis.sink, RedisSink)
    assert (redis.sink.command, redis.sink.staging) == ("XADD", f"{tmp_path}/staging")
    few, other, ahead = job.tables[1].sinks
    assert (few.sink, few.settings.rows, few.settings.allow) == (
        ConsoleSink(5),
        None,
        "at-least-once",
    )
    assert (other.sink, other.settings.rows) == (ConsoleSink(), "SELECT 1 FROM epoch")
    assert other.settings.shared_disk
    assert isinstance(ahead.sink, WriteAheadSink)
    assert isinstance(ahead.sink.deliver, HttpEndpoint)
    assert (ahead.sink.name, ahead.sink.folder) == ("shop", f"file:{tmp_path}/ahead")


def test_one_query_needs_no_array(tmp_path: Path) -> None:
    job = opened(tmp_path, JOB.replace("[[queries]]", "[query]").replace("queries.", "query."))
    assert [table.settings.name for table in job.tables] == ["orders"]


def test_who_takes_one_query_is_given_no_more(tmp_path: Path) -> None:
    assert load_job(opened(tmp_path, JOB)).checkpoint == f"file:{tmp_path}/checkpoint"
    with pytest.raises(UsageError, match=r"several queries \(one, two\)"):
        load_job(opened(tmp_path, WHOLE))


def test_a_sink_and_a_function_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own_sinks_here.py").write_text(
        "from beadline.sinks import SqliteSink\n"
        "class Mine(SqliteSink):\n    pass\n"
        "def deliver(delivery):\n    pass\n"
    )
    text = changed(('type = "sqlite"', 'type = "own_sinks_here:Mine"'))
    text += '[[queries.sinks]]\ntype="write_ahead"\nfolder="f"\ndeliver="own_sinks_here:deliver"\n'
    mine, ahead = opened(tmp_path, text).tables[0].sinks
    assert type(mine.sink).__name__ == "Mine"
    assert isinstance(ahead.sink, WriteAheadSink)
    assert ahead.sink.default_name == "deliver"
    for wrong, why in (("own_sinks_here:deliver", "is not a sink"), ("nowhere:X", "imported")):
        message = refused(tmp_path, changed(('type = "sqlite"', f'type = "{wrong}"')))
        assert message.startswith("job.toml:13: queries.sinks.type:")
        assert why in message


OWN_KINDS = """
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime
from beadline.sinks import SqliteSink
@dataclass(frozen=True)
class Node:
    name: str
    below: Node | None = None
class Odd(SqliteSink):
    def __init__(self, path: str, table: str, tree: Node, bare: dict = {}, when: datetime = None):
        super().__init__(path, table)
        self.__dict__.update(tree=tree, bare=bare)
"""


def test_a_class_of_ones_own_may_have_any_annotations(tmp_path: Path) -> None:
    """Of itself, without parameters, of a kind that TOML knows nothing of."""
    (tmp_path / "odd_kinds.py").write_text(OWN_KINDS)
    text = changed(('type = "sqlite"', 'type = "odd_kinds:Odd"'))
    text += 'tree = { name = "a", below = { name = "b" } }\nbare = { x = [1, { y = "z" }] }\n'
    odd: Any = opened(tmp_path, text).tables[0].sinks[0].sink
    assert (odd.tree.name, odd.tree.below.name) == ("a", "b")
    assert odd.bare == {"x": [1, {"y": "z"}]}
    message = refused(tmp_path, text.replace('name = "b"', "name = 3"))
    assert message.startswith("job.toml:16: queries.sinks.tree.below.name: must be a string, not a")
    message = refused(tmp_path, text + "when = 1979-05-27\n")
    assert message.startswith("job.toml:18: queries.sinks.when: must be a table, not a date")


def test_errors_keep_their_kind(tmp_path: Path) -> None:
    with pytest.raises(BadSink, match=r"job\.toml:12: queries\.sinks: .* needs the columns"):
        opened(tmp_path, changed(('table = "t"', 'table = "t"\nmode = "add"')))


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    assert [table.settings.name for table in open_toml(path).tables] == ["orders"]
    path.write_bytes(JOB.replace("table", "tabel").replace("\n", "\r\n").encode())
    with pytest.raises(UsageError, match=r"job\.toml:15: "):
        open_toml(path)
