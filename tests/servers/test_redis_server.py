"""The Redis of the tests: durable, with a password, and gone when the test is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.testing.servers import RedisCluster, redis
from beadline.testing.servers.ports import accepts


def test_it_keeps_what_it_answered_over_a_kill(tmp_path: Path) -> None:
    with redis(folder=tmp_path) as server:
        with server.client() as client:
            client.set("a", 1)
            server.kill()
            server.restart()
            assert client.get("a") == b"1"
        server.empty()
        server.restart()
        with server.client() as client:
            assert client.dbsize() == 0
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
    assert not accepts(server.port)


def test_settings_win_and_a_password_is_required() -> None:
    from redis import Redis
    from redis.exceptions import AuthenticationError

    with redis({"appendfsync": "everysec"}) as server:
        with server.client() as client:
            assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        with Redis(port=server.port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()


def test_a_cluster_shares_the_slots(redis_cluster: RedisCluster) -> None:
    redis_cluster.wait_ready()
    for node in redis_cluster.nodes:
        with node.client() as client:
            assert client.cluster("INFO")["cluster_slots_ok"] == "16384"
            assert client.role()[0] == b"master"
