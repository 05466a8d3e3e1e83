"""A real Redis, alone or as a small cluster, on the loopback interface.

::

    with redis() as server:
        Redis.from_url(server.url)      # redis://:PASSWORD@127.0.0.1:PORT/0
        server.kill()                   # -9
        server.restart()                # same port, same data
    with redis_cluster() as cluster:    # three masters without replicas
        RedisCluster.from_url(cluster.url)

Every write is on the disk before it is answered (`appendonly yes`, `appendfsync always`), which is
what exactly-once needs and what Redis does not do by itself; `settings` changes that. A password is
asked for, as in the real world, so that a test can look for it where it must not be.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from beadline.testing.servers.debian import program
from beadline.testing.servers.ports import LOOPBACK, free_ports
from beadline.testing.servers.process import ServerProcess, wait_until
from beadline.testing.servers.running import need_client, running, work_folder

__all__ = ["RedisCluster", "RedisServer", "redis", "redis_cluster"]

_START_TIMEOUT_S = 60
_SLOTS = 16384
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}


class RedisServer:
    """One Redis process. `kill` and `restart` it as you like: port, password and data stay."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "redis",
        password: str | None = None,
        cluster: bool = False,
    ) -> None:
        """Write the settings; `start` starts."""
        need_client("redis")
        self.port, bus = free_ports(2)
        self.password = secrets.token_hex(12) if password is None else password
        data = folder.resolve() / name
        data.mkdir(parents=True, exist_ok=True)
        lines = {
            "port": str(self.port),
            "bind": LOOPBACK,
            "dir": str(data),
            "requirepass": self.password,
            "masterauth": self.password,
            **_DURABLE,
            **({"cluster-enabled": "yes", "cluster-port": str(bus)} if cluster else {}),
            **(settings or {}),
        }
        config = data / "redis.conf"
        config.write_text("".join(f'{key} "{value}"\n' for key, value in lines.items()))
        self.bus_port = bus
        command = [str(program("redis-server", "redis-server")), str(config)]
        self.process = ServerProcess(name, command, data, ports=[self.port])

    @property
    def url(self) -> str:
        """Where it is, with the password."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def client(self) -> Any:
        """A client of redis-py; close it."""
        from redis import Redis

        return Redis.from_url(self.url, socket_timeout=10)

    def start(self) -> None:
        """Start, and wait until it has read its data and answers."""
        self.process.start()
        self.wait_ready()

    def stop(self) -> None:
        """Stop it politely; the data stays."""
        self.process.stop()

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()

    def restart(self) -> None:
        """Start it again on the same data, after a `kill` or instead of a `stop`."""
        self.process.stop()
        self.start()

    def empty(self) -> None:
        """Delete every key of every database."""
        with closing(self.client()) as client:
            client.flushall()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when it answers; while it reads its data it does not."""
        wait_until(lambda: _answers(self), "Redis to answer", [self.process], timeout_s)


class RedisCluster:
    """Masters that share the slots; a node that is down takes its slots with it."""

    def __init__(
        self, folder: Path, nodes: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        """Write the settings; `start` starts."""
        self.password = secrets.token_hex(12)
        small = {"cluster-node-timeout": "2000", "cluster-require-full-coverage": "no"}
        self.nodes = [
            RedisServer(
                folder,
                {**small, **(settings or {})},
                name=f"redis-{number}",
                password=self.password,
                cluster=True,
            )
            for number in range(nodes)
        ]

    @property
    def url(self) -> str:
        """The first node's."""
        return self.nodes[0].url

    def start(self) -> None:
        """Start the nodes, share the slots among them, and wait until they know each other."""
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            begin = _SLOTS * number // len(self.nodes)
            end = _SLOTS * (number + 1) // len(self.nodes) - 1
            with closing(node.client()) as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", begin, end)
                if node is not first:
                    client.execute_command("CLUSTER MEET", LOOPBACK, first.port, first.bus_port)
        self.wait_ready()

    def stop(self) -> None:
        """Stop every node; the data stays."""
        for node in self.nodes:
            node.stop()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when every node sees all slots served."""
        processes = [node.process for node in self.nodes]
        what = "all slots of the Redis cluster"
        wait_until(lambda: all(map(self._complete, self.nodes)), what, processes, timeout_s)

    def _complete(self, node: RedisServer) -> bool:
        found: dict[str, str] = _asked(node, lambda client: client.cluster("INFO"), {})
        wanted = {
            "cluster_state": "ok",
            "cluster_slots_ok": str(_SLOTS),
            "cluster_known_nodes": str(len(self.nodes)),
        }
        return all(found.get(name) == value for name, value in wanted.items())


@contextmanager
def redis(
    settings: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[RedisServer]:
    """A Redis for the length of a `with`, in a temporary folder unless one is given.

    `settings` are those of redis.conf, and win over those that are set here. Raises
    `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    with work_folder("redis", folder) as work, running(RedisServer(work, settings)) as server:
        yield server


@contextmanager
def redis_cluster(
    nodes: int = 3, settings: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[RedisCluster]:
    """A Redis cluster of masters without replicas, for the length of a `with`."""
    with (
        work_folder("redis", folder) as work,
        running(RedisCluster(work, nodes, settings)) as cluster,
    ):
        yield cluster


def _answers(server: RedisServer) -> bool:
    return bool(_asked(server, lambda client: client.ping(), False))


def _asked(server: RedisServer, question: Callable[[Any], Any], otherwise: Any) -> Any:
    """What the server answers; `otherwise` while it is not there, or reads its data."""
    from redis.exceptions import RedisError

    try:
        with closing(server.client()) as client:
            return question(client)
    except RedisError:
        time.sleep(0.02)
        return otherwise
