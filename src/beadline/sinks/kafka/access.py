"""Access: a broker that refuses this user, told apart from one that is away.

An outage passes by itself and is waited for; a refusal needs a person, and would otherwise be
retried without end. Rights are refused in the broker's answers. A login is not: the broker closes
the connection, which kafka-python shows as an outage, so librdkafka is asked, which reads the
reason before.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from beadline.sink import CommitBlocked, EpochId, Retries, Verdict
from beadline.sinks.kafka.settings import KafkaSettings

# The broker's names for "this user may not".
NOT_AUTHORIZED = frozenset(
    {
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    }
)
_LOGIN_TIMEOUT_S = 3.0
_POLL_S = 0.1
_SURE = 2  # a broker that just starts may not know its users yet
# librdkafka's own words for a connection that was cut during a login: no broker refused it.
_CUT = re.compile(r"Local:|Disconnected")


def denied(error: BaseException) -> str:
    """Return the broker's name for a right that is missing; empty for any other error."""
    from confluent_kafka import KafkaException
    from kafka.errors import AuthorizationError

    if isinstance(error, AuthorizationError):
        return str(getattr(error, "message", type(error).__name__))
    code = str(error.args[0].name()) if isinstance(error, KafkaException) else ""
    return code if code in NOT_AUTHORIZED else ""


def login_refused(settings: KafkaSettings) -> str:
    """Return why the brokers do not let this user in; empty if they do, or do not answer."""
    if not str(settings.options.get("security.protocol", "")).lower().startswith("sasl"):
        return ""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    heard: list[Any] = []
    told: dict[str, Any] = {**settings.client(), "error_cb": heard.append}
    admin = AdminClient(told)
    retries = Retries({Verdict.AWAY: _LOGIN_TIMEOUT_S}, (0.0,))  # a poll waits by itself
    while True:
        try:
            admin.list_topics(timeout=_POLL_S)
        except KafkaException:
            admin.poll(_POLL_S)  # or nothing is heard
        else:
            return ""
        if why := refusal(heard):
            return settings.redacted(why)
        if not retries.again(Verdict.AWAY):
            return ""


def refusal(heard: Collection[Any]) -> str:
    """Return what one broker said to a login, if it refused it more than once; empty if none did.

    Each broker is judged by itself: one that is down says nothing. A login that is accepted shows
    in the answer that follows it, and then this is not called.
    """
    from confluent_kafka import KafkaError

    refused: dict[str, list[str]] = {}
    for error in heard:
        text = str(error.str())
        if error.code() == KafkaError._AUTHENTICATION and not _CUT.search(text):
            # It begins with the address, and by which name the broker is known there.
            broker = text.partition(": ")[0].rpartition("/")[0]
            refused.setdefault(broker, []).append(text)
    return next((said[0] for said in refused.values() if len(said) >= _SURE), "")


def no_access(epoch: EpochId, sink: str, servers: str, why: str) -> CommitBlocked:
    """Return the error: asking again would be answered the same."""
    return CommitBlocked(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink!r}: Kafka at {servers} "
        f"refuses this user: {why}. The epoch is decided and its rows are kept; the next start "
        "commits them, or computes them again if transaction_timeout_s has passed by then. Correct "
        "the user, password or ACL, and start again."
    )
