"""``RedisSink`` and where it writes: the same data under another address, other data, a rival."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, WrongCheckpoint
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks.redis.client import Client
from beadline.testing.servers import RedisServer, redis
from beadline.testing.suite.target import QUERY, SINK_NAME, epoch_id, part_id
from tests.servers.test_redis_sink import Hands

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
ROWS: dict[str, Any] = {"key": ["n"] * 10, "value": [1] * 10}


def opened(url: str, folder: Path, **settings: Any) -> Hands:
    """A sink as a start has it: checked and opened."""
    hands = Hands(url, folder, **{"command": "INCRBY", **settings})
    hands.sink.check(SCHEMA, QUERY)
    hands.sink.open(QUERY, SINK_NAME)
    return hands


def elsewhere(hands: Hands, url: str, **settings: Any) -> Hands:
    """The same sink with another address."""
    other = Hands(url, Path(hands.sink.staging))
    other.sink = replace(hands.sink, url=url, **settings)
    return other


def other_data(server: RedisServer) -> str:
    """What an empty server in the place of this one would be."""
    with server.client() as client:
        client.execute_command("SELECT", 7)
        client.flushdb()
    return server.url.removesuffix("/0") + "/7"


def total(server: RedisServer, hands: Hands) -> int:
    with server.client() as client:
        return int(client.get(hands.key("n")) or 0)


def test_a_replica_that_took_over_is_the_same_place(tmp_path: Path) -> None:
    """Its address is another, and what was decided and staged for the old one is found there.

    The old primary, back again, has less than was acknowledged since, which is noticed.
    """
    quick = {"repl-diskless-sync-delay": "0"}
    with redis(quick) as server, redis({"masterauth": server.password}) as other:
        with other.client() as client:
            client.replicaof("127.0.0.1", server.port)
            hands = opened(server.url, tmp_path)
            hands.write(0, ROWS)
            deadline_s = time.monotonic() + 30
            while not client.exists(hands.key("n")):
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            client.replicaof("NO", "ONE")
        moved = elsewhere(hands, other.url)
        target = hands.sink.check(SCHEMA, QUERY).target
        assert moved.sink.check(SCHEMA, QUERY).target == target
        decided, orphan = hands.prepare(1, ROWS), hands.prepare(2, ROWS)
        found = {part.id for part in moved.sink.in_doubt(QUERY, "under-test")}
        assert found == {part.id for part in (*decided, *orphan)}
        moved.sink.abort(orphan)
        seen = moved.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None
        assert seen.epoch == 0
        assert moved.commit(1, decided) == {Outcome.COMMITTED}
        assert total(other, moved) == 20
        with pytest.raises(WrongCheckpoint, match="acknowledged epoch 1 and now holds epoch 0"):
            hands.sink.last_seen(QUERY, SINK_NAME)
        with pytest.raises(CommitFailed, match="acknowledged epoch 1 and now holds epoch 0"):
            hands.commit(2, hands.prepare(2, ROWS))
        server.kill()  # it may wait for a replica


def test_another_server_is_not_taken_for_the_one_that_was_opened(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Before the first epoch too, and with another staging folder; unless the loss is taken."""
    hands = opened(redis_server.url, tmp_path / "first")
    parts = hands.prepare(0, ROWS)
    wrong = elsewhere(hands, other_data(redis_server))
    with pytest.raises(WrongCheckpoint, match="opened for this query and now holds nothing"):
        wrong.sink.last_seen(QUERY, SINK_NAME)
    for settings in ({}, {"staging": tmp_path / "second"}):
        with pytest.raises(CommitFailed, match="or it is another server"):
            elsewhere(wrong, wrong.sink.url, **settings).commit(0, parts)
    new = elsewhere(wrong, wrong.sink.url, staging=tmp_path / "second", on_loss="go on")
    new.sink.open(QUERY, SINK_NAME)
    assert new.sink.last_seen(QUERY, SINK_NAME) is None
    assert new.commit(0, parts) == {Outcome.COMMITTED}
    assert not list(tmp_path.rglob("beadline~*")), "also where it was staged before"
    assert total(redis_server, hands) == 0


def test_a_server_that_forgot_before_the_first_epoch(tmp_path: Path) -> None:
    """What was decided is not given up: it is written when the user has said that this is fine."""
    with redis() as server:
        hands = opened(server.url, tmp_path)
        target = hands.sink.check(SCHEMA, QUERY).target
        parts = hands.prepare(0, ROWS)
        server.empty()
        with pytest.raises(WrongCheckpoint, match="now holds nothing"):
            hands.sink.last_seen(QUERY, SINK_NAME)
        taken = elsewhere(hands, server.url, on_loss="go on")
        assert taken.sink.check(SCHEMA, QUERY).target == target, "the decision's target is there"
        taken.sink.open(QUERY, SINK_NAME)
        assert taken.commit(0, parts) == {Outcome.COMMITTED}
        seen = hands.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None, "from then on all is well again"
        assert seen.epoch == 0


def test_sinks_of_one_query_on_two_servers_do_not_share_their_notes(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    hands = opened(redis_server.url, tmp_path)
    hands.write(0, ROWS)
    second = elsewhere(hands, other_data(redis_server))
    second.sink.open(QUERY, "second")
    assert second.sink.last_seen(QUERY, "second") is None
    assert list(second.sink.in_doubt(QUERY, "under-test")) == []


@pytest.mark.parametrize("what", ["commit", "last_seen"])
def test_another_driver_between_the_two_looks_is_no_loss(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It moves ledger and note on after this one has read the ledger."""
    hands = opened(redis_server.url, tmp_path)
    hands.write(0, ROWS)
    parts = hands.prepare(1, ROWS)
    ask = Client.ask
    told: list[set[Outcome]] = []

    def overtaken(self: Client, question: Callable[[Any], Any]) -> Any:
        answer = ask(self, question)
        if not told:
            told.append(set())
            told.append(hands.commit(1, parts))
        return answer

    monkeypatch.setattr(Client, "ask", overtaken)
    if what == "commit":
        assert hands.commit(1, parts) == {Outcome.ALREADY_COMMITTED}
    else:
        seen = hands.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None
    assert told[1] == {Outcome.COMMITTED}
    assert total(redis_server, hands) == 20


GONE = pa.table({"key": ["a", "b"], "value": ["1", None], "gone": [False, True]})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"deleted": "gone"}, {"deleted": ""}, "deleted= was 'gone' and is ''"),
        ({}, {"deleted": "gone"}, "deleted= was '' and is 'gone'"),
        ({}, {"expire": 60}, "expire= was None and is 60"),
        ({}, {"value": "other"}, "value= was 'value' and is 'other'"),
        ({"command": "RPUSH"}, {"command": "SET"}, "command= was 'RPUSH' and is 'SET'"),
    ],
)
def test_a_decided_epoch_is_finished_under_its_own_settings(
    redis_server: RedisServer, tmp_path: Path, before: Any, now: Any, said: str
) -> None:
    hands = Hands(redis_server.url, tmp_path, **before)
    rows = GONE if before else GONE.slice(0, 1).drop_columns("gone")
    parts = hands.prepare(0, rows)
    with redis_server.client() as client:
        client.set(hands.key("b"), "old")
        with pytest.raises(CommitFailed, match=r"settings of before") as failed:
            replace(hands.sink, **now).commit(epoch_id(0), parts)
        assert said in str(failed.value)
        assert client.get(hands.key("b")) == b"old"
        assert not client.exists(hands.key("a"))
        if "command" not in before:
            assert hands.commit(0, parts) == {Outcome.COMMITTED}
            assert client.get(hands.key("a")) == b"1"
            assert client.exists(hands.key("b")) == ("deleted" not in before)


def test_a_part_that_was_staged_without_its_settings_is_readable(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    hands = Hands(redis_server.url, tmp_path, command="INCRBY")
    id_ = part_id(0)
    made = hands.sink._staging.write(iter(pa.table(ROWS).to_batches()), Part(id_))
    assert made is not None
    assert hands.commit(0, [Prepared(id_, 10, made)]) == {Outcome.COMMITTED}
    assert total(redis_server, hands) == 10
