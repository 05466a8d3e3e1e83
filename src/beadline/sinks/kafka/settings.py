"""Settings: users give librdkafka's options; the driver's other client has options of its own.

Executors and readers use librdkafka (confluent-kafka), whose options pass through as they are.
Ending a transaction from another process needs requests that librdkafka does not offer, so the
driver has kafka-python for those, and what it needs to connect is translated here.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from beadline.sink import SECRET_NAME, BadSink, redacted

ClientOptions = Mapping[str, Any]

# What Beadline sets itself, each with the reason that a user is told.
_REFUSED = {
    "bootstrap.servers": "it is KafkaSink's bootstrap_servers=",
    "transactional.id": "Beadline names the transactions, or it could not find them again",
    "transaction.timeout.ms": "it is KafkaSink's transaction_timeout_s=",
    "dr_cb": "callbacks do not travel to executors",
    "on_delivery": "callbacks do not travel to executors",
    "enable.gapless.guarantee": "it ends the producer where Beadline would repeat the epoch",
}
MUST_BE = {"enable.idempotence": "true", "acks": "all", "request.required.acks": "all"}

_LARGEST, _LARGEST_DEFAULT = "message.max.bytes", 1_000_000  # the default is librdkafka's
_QUEUE = "queue.buffering.max.kbytes"

# Throughput: big batches, sent while the next ones come in; flush sends the rest at once. The queue
# is bounded by its bytes: it is the worker's memory.
_DEFAULTS: dict[str, Any] = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 2_000_000,
    _QUEUE: 32_768,
    # As Spark's own sink and every Java producer: a key stays in its partition after the change.
    "partitioner": "murmur2_random",
    "acks": "all",
    # Without transactions too: a retry must not change the order of a key.
    "enable.idempotence": True,
}

# Beadline says itself what goes wrong; librdkafka would print each try to connect to stderr.
LOG_LEVEL = 2

# Options that consumers and admin clients have, too.
_SHARED = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "broker.", "client.", "debug")

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


@dataclass(frozen=True)
class KafkaSettings:
    """How one cluster is reached, and how long it keeps a transaction: for every client.

    ``options`` are librdkafka's, as the user gave them.
    """

    servers: str
    options: ClientOptions = field(default_factory=dict, repr=False)  # may hold a password
    transaction_timeout_s: float = 900.0

    @property
    def key(self) -> str:
        """What tells one client from another, to keep them by."""
        return repr((self.servers, sorted(self.options.items())))

    @property
    def record_bytes_max(self) -> int:
        """The size of the largest record that may be sent, as librdkafka counts it."""
        return int(self.options.get(_LARGEST, _LARGEST_DEFAULT))

    def check(self) -> None:
        """Refuse what would break a promise; at least once also means that nothing is lost."""
        self._check_queue()
        for name, value in self.options.items():
            if name in _REFUSED:
                raise BadSink(f"Kafka option {name!r} cannot be set: {_REFUSED[name]}.")
            wanted = MUST_BE.get(name)
            said = str(value).lower()
            if wanted and said not in (wanted, "-1" if wanted == "all" else wanted):
                raise BadSink(
                    f"Kafka option {name!r} must be {wanted!r}, or records could be lost."
                )
            if name.startswith(_UNKNOWN_THERE):
                raise BadSink(
                    f"Kafka option {name!r} is not understood by the client that ends transactions "
                    "from the driver. Use files instead of PEM texts, and SASL PLAIN or SCRAM. "
                    "(Kerberos is untested: it needs confluent-kafka built from source with "
                    "GSSAPI, and the package gssapi.)"
                )

    def _check_queue(self) -> None:
        """A record for which there is never room would be waited for in vain."""
        for name in (_LARGEST, _QUEUE):
            value = self.options.get(name, "0")
            if not str(value).isdecimal():
                raise BadSink(f"Kafka option {name!r} must be a whole number, not {value!r}.")
        if int(self.options.get(_QUEUE, self._queue_kbytes)) < self._queue_kbytes:
            raise BadSink(
                f"Kafka option {_QUEUE!r} ({self.options[_QUEUE]}) leaves no room for a record of "
                f"{_LARGEST} ({self.record_bytes_max}). Raise the one, or lower the other."
            )

    @property
    def _queue_kbytes(self) -> int:
        """The smallest queue that takes the largest record."""
        return self.record_bytes_max // 1024 + 1

    def redacted(self, text: object) -> str:
        """Return what a client says, without the values of secret settings."""
        found = (str(value) for name, value in self.options.items() if SECRET_NAME.search(name))
        return redacted(str(text), found)

    def client(self) -> dict[str, Any]:
        """Return the options of any librdkafka client."""
        shared = {n: value for n, value in self.options.items() if n.startswith(_SHARED)}
        return {"bootstrap.servers": self.servers, "log_level": LOG_LEVEL, **shared}

    def producer(self) -> dict[str, Any]:
        """Return the options of a producer without transactions."""
        queue = {_QUEUE: max(_DEFAULTS[_QUEUE], self._queue_kbytes)}
        ours = {"bootstrap.servers": self.servers, "log_level": LOG_LEVEL, **_DEFAULTS, **queue}
        return {**ours, **self.options}

    def admin(self, timeout_s: float) -> dict[str, Any]:
        """Return the options of kafka-python."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.servers.split(","),
            "bootstrap_timeout_ms": int(timeout_s * 1000),
            "request_timeout_ms": int(timeout_s * 1000),
            "reconnect_backoff_max_ms": 1000,
            # One request per transaction, all at once; more than that are queued by the caller.
            "max_in_flight_requests_per_connection": 1024,
        }
        options = self.options
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


def _unverified(options: ClientOptions) -> ssl.SSLContext:
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


def said(error: BaseException) -> str:
    """Return what a client's error says: librdkafka's is inside the exception."""
    inner = error.args[0] if error.args else error
    return str(inner.str() if hasattr(inner, "str") else inner)
