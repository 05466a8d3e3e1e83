"""Whether a Redis server can be used, and what it can promise; asked before anything is written.

A write that Redis has acknowledged can still be lost: at a power cut, if its log is not synced
before the answer; when it stops, if it keeps no log; when a replica takes over that has not
received it; and by eviction. Rows and their ledger entry are one write, so they are lost together
and no row is doubled by that; unless the ledger alone is evicted. Each of these is read from the
server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from beadline.sink import NOTHING_WRITTEN, BadSink, Guarantee, Rejected
from beadline.sinks.redis.client import RedisClient

VERSION_MIN = (6, 0)
_SETTINGS = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "maxmemory-policy",
)
_ONCE = (
    "Each row takes effect once: rows, and the ledger entry that counts them, are written by one "
    "script at a time, so that readers see a part of an epoch while it is committed. This holds as "
    "long as no replica takes over: one that is not connected cannot be seen from here."
)
_REPLICAS = (
    "it has replicas, or had until recently, and one that takes over may not have the last "
    "acknowledged writes",
    "a server without replicas, or durable=True, if none of them ever takes over",
)


@dataclass(frozen=True)
class Promise:
    """A guarantee, what limits it, and what would raise it."""

    guarantee: Guarantee
    sentence: str
    raised_by: str = ""


@dataclass
class _Findings:
    """What can go wrong with acknowledged writes, and what to do about it; each once."""

    risks: list[str] = field(default_factory=list)
    cures: list[str] = field(default_factory=list)

    def add(self, risk: str, cure: str) -> None:
        if risk not in self.risks:
            self.risks.append(risk)
        if cure not in self.cures:
            self.cures.append(cure)


def check_server(client: RedisClient, prefix: str, database: int, where: str) -> None:
    """Raise unless every server is one that can be written to by RedisSink."""
    if client.cluster and database:
        raise BadSink(f"{where}: a Redis cluster has database 0 only. {NOTHING_WRITTEN}")
    if client.cluster and not _whole_tag(prefix):
        raise BadSink(
            f"{where}: in a cluster, braces in prefix={prefix!r} must be one whole {{tag}}, which "
            f"then puts all keys into one slot. {NOTHING_WRITTEN}"
        )
    for info in client.ask(lambda _: [server.info() for server in client.servers()]):
        version = str(info.get("redis_version", "0"))
        numbers = re.findall(r"\d+", version)[:2]
        if tuple(map(int, numbers)) < VERSION_MIN:
            raise BadSink(f"{where} is Redis {version}; at least 6.0 is needed. {NOTHING_WRITTEN}")
        if info.get("role") == "slave":
            raise BadSink(
                f"{where} is a replica, which takes no writes. Give the address of its primary, "
                f"{info.get('master_host')}:{info.get('master_port')}. {NOTHING_WRITTEN}"
            )


def _whole_tag(prefix: str) -> bool:
    """Whether braces in a prefix decide the slot by themselves, or there are none."""
    before, brace, after = prefix.partition("{")
    if not brace:
        return "}" not in before
    tag, end, _ = after.partition("}")
    return bool(tag and end)


def promise(client: RedisClient, durable: bool) -> Promise:
    """Read what acknowledged writes can be lost by; ``durable`` is the user's promise."""
    findings = _Findings()
    for server in client.servers():
        settings = _settings(client, server)
        if settings is not None:
            _look(settings, findings)
        elif not durable:
            findings.add(
                "its settings may not be read here (CONFIG GET), so what it does at a crash is "
                "not known",
                "durable=True, if you know that it runs with appendonly yes, appendfsync always "
                "and maxmemory-policy noeviction",
            )
        if not durable:
            _look_now(client, server, findings)
    if client.cluster and not durable:
        _look_at_cluster(client, findings)
    if not findings.risks:
        return Promise(Guarantee.EXACTLY_ONCE, _ONCE)
    sentence = (
        "No row takes effect twice, but rows that Redis has acknowledged may be lost: "
        f"{'; '.join(findings.risks)}."
    )
    cures = "; ".join(findings.cures)
    # A setting that is only in the server's memory is gone when it starts again.
    keep = "; then CONFIG REWRITE, so that it stays" if "CONFIG SET" in cures else ""
    raised_by = f"To raise it: {cures}{keep}."
    return Promise(Guarantee.AT_MOST_ONCE, sentence, raised_by)


def _look(settings: dict[str, str], findings: _Findings) -> None:
    sync = settings.get("appendfsync")
    if settings.get("appendonly") != "yes":
        kept = "since its last snapshot" if settings.get("save") else "of the whole time"
        findings.add(
            f"it keeps no log (appendonly no): those {kept} go when it stops",
            "CONFIG SET appendonly yes",
        )
    if sync != "always":
        risk = (
            "those of the last second or two go at a power cut (appendfsync everysec)"
            if sync == "everysec"
            else f"those of the last half minute go at a power cut (appendfsync {sync})"
        )
        findings.add(risk, "CONFIG SET appendfsync always")
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        findings.add(
            "while its log is rewritten it is not synced (no-appendfsync-on-rewrite yes)",
            "CONFIG SET no-appendfsync-on-rewrite no",
        )
    policy = settings.get("maxmemory-policy", "")
    if policy != "noeviction":
        ledger = (
            "; it may also evict the ledger, and a commit that is repeated then doubles rows"
            if policy.startswith("allkeys")
            else ""
        )
        findings.add(
            f"it evicts keys when memory is short (maxmemory-policy {policy}){ledger}",
            "CONFIG SET maxmemory-policy noeviction",
        )


def _settings(client: RedisClient, server: Any) -> dict[str, str] | None:
    """The settings that matter; None if they may not be read, as on managed servers."""

    def read(_: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in _SETTINGS:
            found |= server.config_get(name)
        return found

    try:
        found = client.ask(read)
    except Rejected:
        return None
    return found if found.get("appendonly") else None


def _look_now(client: RedisClient, server: Any, findings: _Findings) -> None:
    """Look at what the settings do not tell: the state that the server is in."""
    state = client.ask(lambda _: {**server.info("persistence"), **server.info("replication")})
    rewrites = state.get("aof_rewrite_in_progress") or state.get("aof_rewrite_scheduled")
    if rewrites and state.get("aof_last_rewrite_time_sec") == -1:
        # After CONFIG SET appendonly yes nothing is kept before the first log is whole. Whether
        # that is the one being written cannot be seen; that none was since the start, can.
        findings.add(
            "its log is being written for the first time since it started, and until that is done "
            "it may keep nothing",
            "wait until INFO persistence says aof_rewrite_in_progress:0",
        )
    # The backlog stays for an hour after the last replica went; a second offset is that of a
    # replica which was made the primary.
    had = state.get("repl_backlog_active") or state.get("second_repl_offset", -1) != -1
    if state.get("connected_slaves") or had:
        findings.add(*_REPLICAS)


def _look_at_cluster(client: RedisClient, findings: _Findings) -> None:
    """Look for replicas that the cluster knows, also such as are down at the moment."""
    server = client.servers()[0]
    try:
        nodes = client.ask(lambda _: server.execute_command("CLUSTER NODES"))
    except Rejected:
        findings.add(
            "which replicas it has may not be read here (CLUSTER NODES)",
            "durable=True, if you know that none ever takes over",
        )
        return
    if any("slave" in node["flags"] for node in nodes.values()):
        findings.add(*_REPLICAS)
