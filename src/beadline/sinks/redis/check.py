"""Whether settings and server can be used at all; asked before anything is written."""

from __future__ import annotations

import re

from beadline.errors import BadSink
from beadline.sinks.redis.client import Client
from beadline.sinks.redis.columns import COMMANDS, DELETES, ONE_KEY, Layout
from beadline.sinks.redis.ledger import MARK
from beadline.sinks.redis.refused import EXPIRE_MAX_S

VERSION_MIN = (6, 0)
_NOTHING = "Nothing was written."


def check_layout(layout: Layout) -> None:
    """Raise if the settings make no sense together, whatever the columns are."""
    command, expire = layout.command, layout.expire
    if command not in COMMANDS:
        raise BadSink(f"command {command!r} is not one of {', '.join(COMMANDS)}. {_NOTHING}")
    if layout.into and command not in ONE_KEY:
        raise BadSink(
            f"into={layout.into!r}: {command} on one key would leave the last row only. Name the "
            f"column of the keys in key=. {_NOTHING}"
        )
    if layout.deleted and command not in DELETES:
        raise BadSink(f"deleted= is for SET and HSET, not for {command}. {_NOTHING}")
    if MARK in layout.prefix + layout.into:
        raise BadSink(f"{MARK!r} in a key is Beadline's own. {_NOTHING}")
    if expire is None:
        return
    if command == "DEL":
        raise BadSink(f"expire= makes no sense with DEL. {_NOTHING}")
    if not isinstance(expire, str) and (
        isinstance(expire, bool) or not 1 <= expire <= EXPIRE_MAX_S or expire != int(expire)
    ):
        raise BadSink(
            f"expire={expire!r} is not a column, nor 1 to {EXPIRE_MAX_S:,} whole seconds. "
            f"{_NOTHING}"
        )


def check_server(client: Client, prefix: str, database: int, where: str) -> None:
    """Raise unless every server is one that can be written to by RedisSink."""
    nothing = "Nothing was written."
    if client.cluster and database:
        raise BadSink(f"{where}: a Redis cluster has database 0 only. {nothing}")
    if client.cluster and not _whole_tag(prefix):
        raise BadSink(
            f"{where}: in a cluster, braces in prefix={prefix!r} must be one whole {{tag}}, which "
            f"then puts all keys into one slot. {nothing}"
        )
    for info in client.ask(lambda _: [server.info() for server in client.servers()]):
        version = str(info.get("redis_version", "0"))
        numbers = re.findall(r"\d+", version)[:2]
        if tuple(map(int, numbers)) < VERSION_MIN:
            raise BadSink(f"{where} is Redis {version}; at least 6.0 is needed. {nothing}")
        if info.get("role") == "slave":
            raise BadSink(
                f"{where} is a replica, which takes no writes. Give the address of its primary, "
                f"{info.get('master_host')}:{info.get('master_port')}. {nothing}"
            )


def _whole_tag(prefix: str) -> bool:
    """Whether braces in a prefix decide the slot by themselves, or there are none."""
    before, brace, after = prefix.partition("{")
    if not brace:
        return "}" not in before
    tag, end, _ = after.partition("}")
    return bool(tag and end)
