"""The URL, the connections to the server or the nodes of a cluster, and what their errors mean.

Commands go out many at a time and their answers are read afterwards, on connections of our own, as
redis-py's cluster pipeline runs no scripts. No error of redis-py leaves this module: they are told
by their kind and their text, without the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from beadline.sink import BadSink, Denied, Rejected, Unavailable, redacted, require
from beadline.sinks.redis.script import RedisScript

_SCHEMES = ("redis", "rediss", "unix")
# Only options that leave the answers as they are: one that turned them into text, say, would make
# every comparison with what the server answered come out wrong.
_OPTIONS = ("db", "username", "password", "client_name", "health_check_interval")
_OPTIONS_BEGIN = ("socket_", "ssl_")
COMMANDS_MAX, _BYTES_MAX = 256, 8 << 20  # in flight to one node at a time
# The server says "not now" or "not here", which may pass. Redis before 7.0 says in the middle of a
# text what stopped a script: "Error running script (...): @user_script:4: -OOM ...".
_NOT_NOW = re.compile(
    r"(^|\s-)(LOADING|BUSY|READONLY|OOM|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|MOVED|ASK"
    r"|TRYAGAIN|NOSCRIPT|UNBLOCKED)\b"
)
# This user may not run a command of the script; Redis before 7.2 says so without a code.
_DENIED = re.compile(r"(^|\s-)NOPERM\b|ACL failure in script|The user executing the script can't ")

T = TypeVar("T")


@dataclass(frozen=True)
class RedisUrl:
    """What of a URL may be shown."""

    where: str
    database: int

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Read a URL, or raise without repeating it: it holds a password.

        >>> RedisUrl.parse("redis://:secret@redis-1/2"), RedisUrl.parse("unix:///run/redis?db=3")
        (RedisUrl(where='redis-1:6379', database=2), RedisUrl(where='/run/redis', database=3))
        """
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, keep_blank_values=True)
            where = parts.path
            path = ""
            if parts.scheme != "unix":
                where, path = f"{parts.hostname or 'localhost'}:{parts.port or 6379}", parts.path
            database = int(options["db"][0] if "db" in options else path.strip("/") or 0)
        except (ValueError, TypeError, AttributeError):
            parts = None
        if parts is None or parts.scheme not in _SCHEMES or database < 0:
            raise BadSink(
                "a URL of Redis is redis://[user][:password]@host[:port][/database], or rediss:// "
                "for TLS, or unix://; the one given is not (special characters of a password are "
                "written as %XX). Nothing was written."
            )
        # Not named: what follows a bare ? in a password looks like an option.
        if not all(map(_taken, options)):
            raise BadSink(
                "the URL of Redis has an option that RedisSink does not take; it takes "
                f"{', '.join(_OPTIONS)}, and what begins with {' or '.join(_OPTIONS_BEGIN)}. If it "
                "is part of a password: special characters there are written as %XX. "
                "Nothing was written."
            )
        return cls(where, database)


def _taken(option: str) -> bool:
    plain = option.replace("_", "").isalnum()
    return option in _OPTIONS or (plain and option.startswith(_OPTIONS_BEGIN))


def without_password(text: str, url: str) -> str:
    """Return a text without the password of a URL."""
    try:
        parts = urlsplit(url)
        secrets = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    except ValueError:
        secrets = []
    return redacted(text, secrets)


class RedisClient:
    """Connections to one server, or to the nodes of one cluster."""

    def __init__(self, redis: Any, url: str, cluster: bool) -> None:
        """Use ``connect``."""
        self._redis = redis
        self._url = url
        self.cluster = cluster
        self._connections: dict[str, Any] = {}
        self._loaded: set[tuple[str, bytes]] = set()

    def ask(self, question: Callable[[Any], T]) -> T:
        """Return what a call of redis-py answers; raise ``Unavailable`` or ``Rejected``."""
        with _explained(self._url):
            return question(self._redis)

    def servers(self) -> list[Any]:
        """Return a client of redis-py for each server that holds keys."""
        if not self.cluster:
            return [self._redis]
        return [self._redis.get_redis_connection(node) for node in self._redis.get_primaries()]

    def run(self, script: RedisScript, calls: Sequence[tuple[bytes, bytes]]) -> list[list[bytes]]:
        """Run a script many times, each call given as its first key and its wire form.

        Calls for one node run in their order, and all of them are sent whatever is answered. An
        answer that is an error is raised after all were read.
        """
        with _explained(self._url):
            waiting: dict[str, list[int]] = {}
            for number, (key, _) in enumerate(calls):
                waiting.setdefault(self._open(key), []).append(number)
            answers: list[Any] = [None] * len(calls)
            while waiting:
                sent = {node: self._send(node, script, calls, waiting[node]) for node in waiting}
                for node, numbers in sent.items():
                    for number in numbers:
                        answers[number] = self._read(node)
                waiting = {
                    node: numbers[len(sent[node]) :]
                    for node, numbers in waiting.items()
                    if len(numbers) > len(sent[node])
                }
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    def _open(self, key: bytes) -> str:
        """Return the name of the node that holds a key, with a connection to it open."""
        node = self._redis.get_node_from_key(key) if self.cluster else None
        name = "" if node is None else str(node.name)
        if name not in self._connections:
            server = self._redis if node is None else self._redis.get_redis_connection(node)
            self._connections[name] = server.connection_pool.get_connection()
        return name

    def _send(
        self,
        node: str,
        script: RedisScript,
        calls: Sequence[tuple[bytes, bytes]],
        numbers: Sequence[int],
    ) -> list[int]:
        """Send the first of these calls, as many as may be in flight; return which."""
        connection = self._connections[node]
        if (node, script.sha) not in self._loaded:
            connection.send_packed_command([script.load()])
            connection.read_response()
            self._loaded.add((node, script.sha))
        sent: list[int] = []
        size = 0
        for number in numbers[:COMMANDS_MAX]:
            size += len(calls[number][1])
            if sent and size > _BYTES_MAX:
                break
            sent.append(number)
        connection.send_packed_command([b"".join(calls[number][1] for number in sent)])
        return sent

    def _read(self, node: str) -> Any:
        from redis.exceptions import ConnectionError as Broken
        from redis.exceptions import ResponseError

        try:
            return self._connections[node].read_response()
        except Broken:
            raise
        except ResponseError as error:
            return error  # the answers behind it must be read all the same

    def close(self) -> None:
        """End every connection: after an error it is not known what is still to be read."""
        from redis.exceptions import RedisError

        for connection in self._connections.values():
            with suppress(RedisError, OSError):
                connection.disconnect()
        self._connections.clear()
        with suppress(RedisError, OSError):
            self._redis.close()


@contextmanager
def connect(url: str, cluster: bool | None, timeout_s: float) -> Iterator[RedisClient]:
    """Open a client for the length of a ``with``; ``cluster=None`` lets the server say."""
    require("redis")
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.cluster import RedisCluster
    from redis.retry import Retry

    # Whether to try again, and when, is the caller's to say.
    waits = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, 10.0),
        "retry": Retry(NoBackoff(), 0),
    }
    with _explained(url):
        made: Any = Redis.from_url(url, **waits)
        try:
            # Asked of one server first, whose errors say more than those of a cluster's client.
            found = cluster if cluster is not None else _is_cluster(made)
            if found:
                made.ping()
                made.close()
                made = RedisCluster.from_url(url, **waits)
        except BaseException:
            made.close()
            raise
    client = RedisClient(made, url, found)
    try:
        yield client
    finally:
        client.close()


def _is_cluster(server: Any) -> bool:
    return bool(server.info("cluster").get("cluster_enabled"))


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn errors of redis-py into ``Unavailable`` and ``Rejected``, without their secrets."""
    from redis import exceptions as found

    denied = (
        found.AuthenticationError,
        found.AuthorizationError,
        found.NoPermissionError,
        found.AuthenticationWrongNumberOfArgsError,
    )
    passing = (
        found.ConnectionError,
        found.TimeoutError,
        found.ReadOnlyError,
        found.OutOfMemoryError,
        found.ClusterError,
        found.RedisClusterException,
        found.ClusterDownError,
        found.AskError,
        found.MovedError,
        found.TryAgainError,
        found.MasterDownError,
        found.NoScriptError,
        OSError,
    )
    try:
        yield
    except denied as error:
        raise Denied(_text(error, url)) from None
    except passing as error:
        answered = isinstance(error, found.ResponseError | found.BusyLoadingError)
        raise Unavailable(_text(error, url), answered) from None
    except ValueError as error:  # an option in the URL
        raise Rejected(_text(error, url)) from None
    except found.RedisError as error:
        text = _text(error, url)
        if is_passing(str(error)):
            raise Unavailable(text, answered=True) from None
        raise (Denied if is_denied(str(error)) else Rejected)(text) from None


def is_passing(text: str) -> bool:
    """Whether an error of the server is about this moment, not about what it was asked.

    >>> is_passing("OOM command not allowed"), is_passing("WRONGTYPE Operation against a key")
    (True, False)
    """
    return _NOT_NOW.search(text) is not None


def is_denied(text: str) -> bool:
    """Whether an error inside a script is about the user, not about the row.

    >>> is_denied("ERR The user executing the script can't run this command or subcommand")
    True
    """
    return _DENIED.search(text) is not None


def _text(error: Exception, url: str) -> str:
    kind = type(error).__name__
    return without_password(f"{kind}: {error}" if str(error) else kind, url)
