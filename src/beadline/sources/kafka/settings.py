"""Settings of Kafka's Java client, translated for librdkafka, on which Python's client is built.

Users write their settings once, in the options of the source, as Java names them. Most names agree.
Those that do not are the ones with a key or a password in them; what has no counterpart (a JKS
key store, a login module of one's own) is an error that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from beadline.errors import BadSetting

PREFIX = "kafka."

# The same name and the same values on both sides.
_SAME = (
    "bootstrap.servers",
    "client.dns.lookup",
    "client.id",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.kerberos.service.name",
    "sasl.mechanism",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites",
    "ssl.key.password",
)
_PEM = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.truststore.certificates": ("ssl.ca.pem",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
    "ssl.keystore.key": ("ssl.key.pem",),
}
_STORE_SECRETS = ("ssl.keystore.location", "ssl.keystore.password")
_LOGIN_MODULES = ("PlainLoginModule", "ScramLoginModule")
_JAAS = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]+)')
_ESCAPED = re.compile(r"\\(.)")


def librdkafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for a source's ``kafka.*`` options.

    Raises `BadSetting`, naming the setting and never its value, where there is no counterpart.
    """
    java = {
        name[len(PREFIX) :].lower(): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    settings = {name: java[name] for name in _SAME if name in java}
    if "ssl.endpoint.identification.algorithm" in java:  # empty is how Java switches it off
        algorithm = java["ssl.endpoint.identification.algorithm"]
        settings["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"
    settings.update(_stores(java))
    if "sasl.jaas.config" in java:
        settings.update(_login(java["sasl.jaas.config"]))
    return settings


def _stores(java: Mapping[str, str]) -> dict[str, str]:
    """PEM goes everywhere, PKCS12 as a key store only, and JKS is Java's own."""
    settings: dict[str, str] = {}
    for store in ("truststore", "keystore"):
        kind = java.get(f"ssl.{store}.type", "JKS").upper()
        names = [name for name in _PEM if name.startswith(f"ssl.{store}.") and name in java]
        if kind == "PEM":
            settings.update({other: java[name] for name in names for other in _PEM[name]})
        elif kind == "PKCS12" and store == "keystore":
            settings.update({name: java[name] for name in _STORE_SECRETS if name in java})
        elif names:
            raise BadSetting(
                f"kafka.ssl.{store}.location is a {kind} file, which only Java reads; give a PEM "
                f"file and kafka.ssl.{store}.type=PEM"
            )
    return settings


def _login(jaas: str) -> dict[str, str]:
    """Take user and password out of the line that Java's login modules read."""
    words = jaas.split()
    if not words or not words[0].endswith(_LOGIN_MODULES):
        raise BadSetting(
            "kafka.sasl.jaas.config names a login module that has no counterpart outside Java; "
            f"known are {' and '.join(_LOGIN_MODULES)}"
        )
    found = {name: _unquoted(value) for name, value in _JAAS.findall(jaas)}
    if "username" not in found or "password" not in found:
        raise BadSetting("kafka.sasl.jaas.config has no username= or no password=")
    return {"sasl.username": found["username"], "sasl.password": found["password"]}


def _unquoted(value: str) -> str:
    return _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value
