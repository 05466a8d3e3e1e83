"""What Redis answers, and what ``RedisSink`` makes of it; the URL, and the size of a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.sink import Outcome
from beadline.sinks import RedisSink
from beadline.sinks.redis import chunks
from beadline.sinks.redis.address import Address
from beadline.sinks.redis.client import Client, is_passing
from beadline.sinks.redis.script import ScriptRows
from beadline.testing.servers import RedisServer
from beadline.testing.suite.target import QUERY
from tests.servers.test_redis_sink import Hands

ROWS: dict[str, Any] = {"key": ["n"] * 3, "value": [1] * 3}


@pytest.mark.parametrize("answer", [["applied", ""], [b"APPLIED", b""], [], b"applied", 1, None])
def test_an_unknown_answer_is_no_success(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    hands = Hands(redis_server.url, tmp_path, command="INCRBY")
    parts = hands.prepare(0, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(Client, "run", lambda self, script, calls: [answer] * len(calls))
        with pytest.raises(CommitFailed, match="the script answered"):
            hands.commit(0, parts)
    assert hands.commit(0, parts) == {Outcome.COMMITTED}, "the part is still there"


@pytest.mark.parametrize(
    "option",
    ["decode_responses=true", "encoding=latin-1", "protocol=3", "legacy_responses=0", "x=1"],
)
def test_options_that_change_the_answers_are_refused(option: str) -> None:
    with pytest.raises(BadSink) as refused:
        RedisSink(f"redis://:dont-tell-me@h/0?{option}", staging="/tmp/x")
    # It is not named: behind a "?" in a password, that would be part of the password.
    assert "has an option that RedisSink does not take; it takes db," in str(refused.value)
    assert option.partition("=")[0] not in str(refused.value).split()
    assert "dont-tell-me" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "where", "database"),
    [
        ("redis://h", "h:6379", 0),
        ("redis://h:1/3?socket_timeout=5", "h:1", 3),
        ("redis://h/3?db=4", "h:6379", 4),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock", 2),
    ],
)
def test_the_database_is_that_which_is_written_to(url: str, where: str, database: int) -> None:
    assert Address.parse(url) == Address(where, database)


@pytest.mark.parametrize("url", ["redis://h/0?db=x", "redis://h?db=-1", "redis://h?db="])
def test_a_database_that_cannot_be(url: str) -> None:
    with pytest.raises(BadSink, match="a URL of Redis"):
        Address.parse(url)


def test_a_database_in_an_option(redis_server: RedisServer, tmp_path: Path) -> None:
    hands = Hands(f"{redis_server.url}?db=3", tmp_path)
    found = hands.sink.check(pa.schema([("key", pa.string()), ("value", pa.string())]), QUERY)
    assert found.target.startswith("redis:3#")
    hands.write(0, {"key": ["a"], "value": ["1"]})
    with redis_server.client() as client:
        assert not client.exists(hands.key("a"))
        client.execute_command("SELECT", 3)
        assert client.get(hands.key("a")) == b"1"


_SCRIPT = "Error running script (call to f_2c5e): @user_script:18: @user_script: 18: "


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        (f"{_SCRIPT}-READONLY You can't write against a read only replica. ", True),
        (f"{_SCRIPT}-OOM command not allowed when used memory > 'maxmemory'. ", True),
        (f"{_SCRIPT}-MISCONF Errors writing to the AOF file: No space left on device ", True),
        (f"{_SCRIPT}-NOREPLICAS Not enough good replicas to write. ", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("BUSY Redis is busy running a script.", True),
        (f"{_SCRIPT}-WRONGTYPE Operation against a key holding the wrong kind of value", False),
        (f"{_SCRIPT}Unknown Redis command called from Lua script", False),
        ("BUSYGROUP Consumer Group name already exists", False),
        ("unknown command 'EVALSHA'", False),
    ],
)
def test_errors_of_the_moment_are_known_in_both_forms(text: str, passing: bool) -> None:
    """Redis 6 wraps what stopped a script; Redis 7 says it first."""
    assert is_passing(text) == passing


def test_a_script_is_cut_by_the_bytes_of_its_own_rows(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large values come together: the mean of all would put too many of them into one script."""
    monkeypatch.setattr(chunks, "BYTES_MAX", 1000)
    sizes = [1] * 300 + [400] * 7 + [5000, 1, 999, 1] + [1] * 300
    values = [b"x" * size for size in sizes]
    rows = ScriptRows([b"k"] * len(values), [values], [0] * len(values))
    found = [one for some in chunks.in_order(iter((rows,)), b"ledger", 0) for one in some]
    assert [value for chunk in found for value in chunk.rows.columns[0]] == values
    begins = [chunk.first for chunk in found]
    assert [chunk.end for chunk in found] == [*begins[1:], len(values)], "in order, none left out"
    for chunk in found:
        assert len(chunk.rows) == 1 or chunks._bytes(chunk.rows) <= 1000
    assert len(found) < 15
    hands = Hands(redis_server.url, tmp_path, command="RPUSH")
    hands.write(0, {"key": ["k"] * len(values), "value": values})
    with redis_server.client() as client:
        assert client.lrange(hands.key("k"), 0, -1) == values
