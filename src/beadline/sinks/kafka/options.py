"""Settings: the user speaks librdkafka's language; the driver's other client speaks its own.

Executors and readers use librdkafka (confluent-kafka), whose options pass through as they are.
Ending a transaction from another process needs requests that librdkafka does not offer, so the
driver has kafka-python for those, and what it needs to connect is translated here.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from beadline.errors import BadSink

Options = Mapping[str, Any]

# What Beadline sets itself, each with the reason that a user is told.
REFUSED = {
    "bootstrap.servers": "it is KafkaSink's bootstrap_servers=",
    "transactional.id": "Beadline names the transactions, or it could not find them again",
    "transaction.timeout.ms": "it is KafkaSink's transaction_timeout_s=",
    "dr_cb": "callbacks do not travel to executors",
    "on_delivery": "callbacks do not travel to executors",
    "enable.gapless.guarantee": "it ends the producer where Beadline would repeat the epoch",
}
MUST_BE = {"enable.idempotence": "true", "acks": "all", "request.required.acks": "all"}

LARGEST, LARGEST_DEFAULT = "message.max.bytes", 1_000_000  # the default is librdkafka's
QUEUE = "queue.buffering.max.kbytes"

# Throughput: big batches, sent while the next ones come in; flush sends the rest at once. The queue
# is bounded by its bytes: it is the worker's memory.
DEFAULTS: dict[str, Any] = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 2_000_000,
    QUEUE: 32_768,
    # As Spark's own sink and every Java producer: a key stays in its partition after the change.
    "partitioner": "murmur2_random",
    "acks": "all",
    # Without transactions too: a retry must not change the order of a key.
    "enable.idempotence": True,
}

_SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer|pem$|[.]key[.]")

# Beadline says itself what goes wrong; librdkafka would print each try to connect to stderr.
LOG_LEVEL = 2

_DIRECT = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
}
_UNKNOWN_THERE = (
    "oauth_cb",
    "sasl.oauthbearer.",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.crl.location",
    "ssl.engine.",
    "ssl.key.pem",
    "ssl.keystore.",
)


def check(options: Options) -> None:
    """Refuse what would break a promise; at least once also means that nothing is lost."""
    _check_queue(options)
    for name, value in options.items():
        if name in REFUSED:
            raise BadSink(f"Kafka option {name!r} cannot be set: {REFUSED[name]}.")
        wanted = MUST_BE.get(name)
        said = str(value).lower()
        if wanted and said not in (wanted, "-1" if wanted == "all" else wanted):
            raise BadSink(f"Kafka option {name!r} must be {wanted!r}, or records could be lost.")
        if name.startswith(_UNKNOWN_THERE):
            raise BadSink(
                f"Kafka option {name!r} is not understood by the client that ends transactions "
                "from the driver. Use files instead of PEM texts, and SASL PLAIN or SCRAM. "
                "(Kerberos is untested: it needs confluent-kafka built from source with GSSAPI, "
                "and the package gssapi.)"
            )


def _check_queue(options: Options) -> None:
    """A record for which there is never room would be waited for in vain."""
    for name in (LARGEST, QUEUE):
        if not str(options.get(name, "0")).isdecimal():
            raise BadSink(f"Kafka option {name!r} must be a whole number, not {options[name]!r}.")
    if QUEUE in options and int(options[QUEUE]) < _queue_kbytes(options):
        raise BadSink(
            f"Kafka option {QUEUE!r} ({options[QUEUE]}) leaves no room for a record of {LARGEST} "
            f"({options.get(LARGEST, LARGEST_DEFAULT)}). Raise the one, or lower the other."
        )


def _queue_kbytes(options: Options) -> int:
    """Return the smallest queue that takes the largest record."""
    return int(options.get(LARGEST, LARGEST_DEFAULT)) // 1024 + 1


def redacted(text: str, options: Options) -> str:
    """Return the text without the values of secret settings."""
    for name, value in options.items():
        if _SECRET.search(name) and str(value):
            text = text.replace(str(value), "***")
    return text


def client(servers: str, options: Options) -> dict[str, Any]:
    """Return the settings of any librdkafka client."""
    return {"bootstrap.servers": servers, "log_level": LOG_LEVEL, **_shared(options)}


def producer(servers: str, options: Options) -> dict[str, Any]:
    """Return the settings of a producer without transactions."""
    queue = {QUEUE: max(DEFAULTS[QUEUE], _queue_kbytes(options))}
    return {"bootstrap.servers": servers, "log_level": LOG_LEVEL, **DEFAULTS, **queue, **options}


def admin(servers: str, options: Options, timeout_s: float) -> dict[str, Any]:
    """Return kafka-python's settings."""
    settings: dict[str, Any] = {
        "bootstrap_servers": servers.split(","),
        "bootstrap_timeout_ms": int(timeout_s * 1000),
        "request_timeout_ms": int(timeout_s * 1000),
        "reconnect_backoff_max_ms": 1000,
        # One request per transaction, all at once; more than that are queued by the caller.
        "max_in_flight_requests_per_connection": 1024,
    }
    for name, value in options.items():
        if name in _DIRECT:
            settings[_DIRECT[name]] = str(value)
    if "security_protocol" in settings:
        settings["security_protocol"] = settings["security_protocol"].upper()
    if str(options.get("ssl.endpoint.identification.algorithm", "")).lower() == "none":
        settings["ssl_check_hostname"] = False
    if str(options.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        settings["ssl_context"] = _unverified(options)
    return settings


def _unverified(options: Options) -> ssl.SSLContext:
    """Trust every broker. kafka-python loads no certificate of ours into a context it is given."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if options.get("ssl.certificate.location"):
        context.load_cert_chain(
            str(options["ssl.certificate.location"]),
            options.get("ssl.key.location"),
            options.get("ssl.key.password"),
        )
    return context


def _shared(options: Options) -> dict[str, Any]:
    """Return what a consumer or an admin client may be told, too."""
    shared = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "broker.", "client.", "debug")
    return {name: value for name, value in options.items() if name.startswith(shared)}
