"""``RedisSink`` at commit: odd answers, large values, changed settings, orphans, SIGKILL."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks.redis import chunks
from beadline.sinks.redis.client import RedisClient
from beadline.sinks.redis.script import ScriptRows
from beadline.testing.servers import RedisServer
from beadline.testing.suite.target import QUERY, epoch_id, part_id
from tests.servers.redis_store import Store, ones, total

ROWS = ones(rows=10)
MANY_ROWS = 20_000
WAIT_S = 30


@pytest.mark.parametrize("answer", [["applied", ""], [b"APPLIED", b""], [], b"applied", 1, None])
def test_an_unknown_answer_is_no_success(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    store = Store(redis_server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(RedisClient, "run", lambda self, script, calls: [answer] * len(calls))
        with pytest.raises(CommitFailed, match="the script answered"):
            store.commit(0, parts)
    assert store.commit(0, parts) == {Outcome.COMMITTED}, "the part is still there"


def test_a_script_is_cut_by_the_bytes_of_its_own_rows(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values come together: the mean of all would put too many of them into one script."""
    monkeypatch.setattr(chunks, "BYTES_MAX", 1000)
    sizes = [1] * 300 + [400] * 7 + [5000, 1, 999, 1] + [1] * 300
    values = [b"x" * size for size in sizes]
    rows = ScriptRows([b"k"] * len(values), [values], [(0, 0)] * len(values))
    found = [one for some in chunks.in_order(iter((rows,)), b"ledger", 0) for one in some]
    assert [value for chunk in found for value in chunk.rows.columns[0]] == values
    begins = [chunk.first for chunk in found]
    assert [chunk.end for chunk in found] == [*begins[1:], len(values)], "in order, none left out"
    for chunk in found:
        assert len(chunk.rows) == 1 or chunks._bytes(chunk.rows) <= 1000
    assert len(found) < 15
    store = Store(redis_server.url, tmp_path, command="RPUSH")
    store.write(0, {"key": ["k"] * len(values), "value": values})
    with redis_server.client() as client:
        assert client.lrange(store.key("k"), 0, -1) == values


def test_a_database_in_an_option(redis_server: RedisServer, tmp_path: Path) -> None:
    store = Store(f"{redis_server.url}?db=3", tmp_path)
    found = store.sink.check(pa.schema([("key", pa.string()), ("value", pa.string())]), QUERY)
    assert found.target.startswith("redis:3#")
    store.write(0, {"key": ["a"], "value": ["1"]})
    with redis_server.client() as client:
        assert not client.exists(store.key("a"))
        client.execute_command("SELECT", 3)
        assert client.get(store.key("a")) == b"1"


GONE = pa.table({"key": ["a", "b"], "value": ["1", None], "gone": [False, True]})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"deleted": "gone"}, {"deleted": ""}, "deleted was 'gone' and is ''"),
        ({}, {"deleted": "gone"}, "deleted was '' and is 'gone'"),
        ({}, {"expire": 60}, "expire was None and is 60"),
        ({}, {"value": "other"}, "value was 'value' and is 'other'"),
        ({"command": "RPUSH"}, {"command": "SET"}, "command was 'RPUSH' and is 'SET'"),
    ],
)
def test_a_decided_epoch_is_finished_under_its_own_settings(
    redis_server: RedisServer, tmp_path: Path, before: Any, now: Any, said: str
) -> None:
    store = Store(redis_server.url, tmp_path, **before)
    rows = GONE if before else GONE.slice(0, 1).drop_columns("gone")
    parts = store.prepare(0, rows)
    with redis_server.client() as client:
        client.set(store.key("b"), "old")
        with pytest.raises(CommitFailed, match=r"earlier settings") as failed:
            replace(store.sink, **now).commit(epoch_id(0), parts)
        assert said in str(failed.value)
        assert client.get(store.key("b")) == b"old"
        assert not client.exists(store.key("a"))
        if "command" not in before:
            assert store.commit(0, parts) == {Outcome.COMMITTED}
            assert client.get(store.key("a")) == b"1"
            assert client.exists(store.key("b")) == ("deleted" not in before)


def test_a_part_that_was_staged_without_its_settings_is_readable(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = Store(redis_server.url, tmp_path, command="INCRBY")
    id_ = part_id(0)
    made = store.sink.staging_area.write(iter(pa.table(ROWS).to_batches()), Part(id_))
    assert made is not None
    assert store.commit(0, [Prepared(id_, 10, made)]) == {Outcome.COMMITTED}
    assert total(redis_server, store) == 10


def test_orphans_of_another_name_and_prefix_are_found(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    gone, left = (Store(redis_server.url, tmp_path) for _ in range(2))
    (part,) = gone.prepare(0, {"key": ["a"], "value": ["b"]})
    other = left.sink
    assert [each.id for each in other.in_doubt(QUERY, "under-test")] == [part.id]
    other.abort(list(other.in_doubt(QUERY, "under-test")))
    assert list(gone.sink.in_doubt(QUERY, "under-test")) == []


_COMMIT = """
import pickle, sys
from beadline.sinks.redis import chunks
chunks.ROWS_MAX = 20
sink, epoch, parts = pickle.load(open(sys.argv[1], "rb"))
sink.commit(epoch, parts)
"""


def test_a_driver_that_is_killed_again_and_again(
    redis_server: RedisServer, tmp_path: Path, rng: random.Random
) -> None:
    """In the middle of a command on the wire if it so happens; every row counts once."""
    store = Store(redis_server.url, tmp_path / "staging", command="INCRBY")
    parts = store.prepare(0, ones(rows=MANY_ROWS), ones(rows=MANY_ROWS))
    order = tmp_path / "order"
    order.write_bytes(pickle.dumps((store.sink, epoch_id(0), parts)))
    seen = [0]
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", _COMMIT, str(order)]) as driver:
            deadline_s = time.monotonic() + WAIT_S
            while total(redis_server, store) == seen[-1] and driver.poll() is None:
                assert time.monotonic() < deadline_s
            time.sleep(rng.uniform(0, 0.01))
            driver.kill()
        seen.append(total(redis_server, store))
    print(f"rows after each kill: {seen}")
    assert 0 < seen[1] < 2 * MANY_ROWS, "the first was killed in the middle"
    assert store.commit(0, parts) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert total(redis_server, store) == 2 * MANY_ROWS
