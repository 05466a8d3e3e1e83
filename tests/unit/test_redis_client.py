"""The URL of Redis, whose password no error repeats; and which of its errors may pass."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from beadline.errors import BadSink
from beadline.shared.retry import Denied
from beadline.sinks import RedisSink
from beadline.sinks.redis.acknowledged import loss
from beadline.sinks.redis.apply import RedisRowRejected, apply
from beadline.sinks.redis.chunks import Chunk
from beadline.sinks.redis.client import RedisUrl, is_denied, is_passing
from beadline.sinks.redis.ledger import Guard
from beadline.sinks.redis.script import RedisScript, ScriptRows

URLS = [
    "redis://:12?s3cret@host:6379/0",
    "redis://:12?s3cret&more@host:6379/0",
    "redis://:12?s3cret=1@host:6379/0",
    "redis://:12?s3cret#@host:6379/0",
    "redis://:12?socket_s3cret@host:6379/0",
    "redis://:12?db=s3cret@host:6379/0",
    "redis://:12/s3cret@host:6379/0",
    "redis://host/0?s3cret=true",
]


@pytest.mark.parametrize("url", URLS)
def test_nothing_of_a_password_is_repeated(url: str) -> None:
    with pytest.raises(BadSink, match=r"special characters.*written as %XX") as caught:
        RedisUrl.parse(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_options_that_are_taken() -> None:
    url = "rediss://:p%3Fw@host/1?socket_timeout=3&ssl_ca_certs=/ca.pem&client_name=me"
    assert RedisUrl.parse(url) == RedisUrl("host:6379", 1)


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
    assert RedisUrl.parse(url) == RedisUrl(where, database)


@pytest.mark.parametrize("url", ["redis://h/0?db=x", "redis://h?db=-1", "redis://h?db="])
def test_a_database_that_cannot_be(url: str) -> None:
    with pytest.raises(BadSink, match="a URL of Redis"):
        RedisUrl.parse(url)


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


@pytest.mark.parametrize(
    ("text", "denied"),
    [
        (f"{_SCRIPT}The user executing the script can't run this command or subcommand", True),
        ("ERR The user executing the script can't access at least one of the keys", True),
        ("NOPERM ACL failure in script: User me has no permissions to run 'set'", True),
        (f"{_SCRIPT}-NOPERM ACL failure in script: no permissions", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("ERR increment or decrement would overflow", False),
    ],
)
def test_what_this_user_may_not_is_known_in_every_form(text: str, denied: bool) -> None:
    """It says nothing about the row that the script was at."""
    assert is_denied(text) == denied


class Answering:
    """A server whose scripts stop at the first row, and say why."""

    def __init__(self, problem: bytes) -> None:
        self.problem = problem

    def run(self, script: RedisScript, calls: list[tuple[bytes, bytes]]) -> list[list[bytes]]:
        return [[b"refused", b"0", self.problem] for _ in calls]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (b"ERR The user executing the script can't run this command", Denied),
        (b"WRONGTYPE Operation against a key", RedisRowRejected),
    ],
)
def test_no_row_is_to_blame_for_a_right_that_is_missing(problem: bytes, kind: type) -> None:
    chunk = Chunk(b"ledger", 0, ScriptRows([b"k"], [[b"v"]], [(0, 0)]))
    guard = Guard("sink", "a" * 32, 0, "n", 1)
    server: Any = Answering(problem)
    with pytest.raises(Exception, match=r"ERR|WRONGTYPE") as told:
        apply(server, RedisScript(b""), guard, [chunk])
    assert told.type is kind


@pytest.mark.parametrize("newest", [None, -1, 4])
def test_the_error_of_a_loss_does_not_say_that_nothing_was_written(newest: int | None) -> None:
    """At a start nothing was written; between two epochs much was."""
    assert "written" not in loss("redis-1:6379", newest, None)
