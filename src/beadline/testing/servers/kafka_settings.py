"""Where the brokers of a test Kafka listen, and the property files that tell them so.

A broker has a DIRECT listener for ordinary clients, and the CONTROLLER's. PROXIED binds one port
and advertises another, on which a fault injector listens: a client that comes in through it is sent
back through it. SASL wants a name and a password, TLS a certificate of the client.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from beadline.testing.servers.certificates import Certificates
from beadline.testing.servers.ports import LOOPBACK, free_ports

# In addition to PLAIN, with the same users and passwords.
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class Users:
    """Names with their passwords, and which of them need no permission."""

    passwords: Mapping[str, str]
    superusers: tuple[str, ...]

    @property
    def scram(self) -> list[str]:
        """Arguments of `format`: SCRAM's users are in the cluster, and not in its settings."""
        return [
            f"--add-scram={mechanism}=[name={name},password={password}]"
            for mechanism in SCRAM
            for name, password in self.passwords.items()
        ]


@dataclass(frozen=True)
class Broker:
    """The ports and files of one broker; a port that it does not have is 0."""

    number: int
    folder: Path
    direct: int
    controller: int
    proxied: int = 0
    advertised: int = 0
    sasl: int = 0
    tls: int = 0

    @property
    def name(self) -> str:
        """`broker-1`: the name of its process, folder and log file."""
        return f"broker-{self.number}"

    @property
    def data(self) -> Path:
        """The folder with its logs, in Kafka's sense."""
        return self.folder / "data"

    @property
    def properties(self) -> Path:
        """Its `server.properties`."""
        return self.folder / "server.properties"

    @property
    def logging(self) -> Path:
        """Its log4j2 configuration."""
        return self.folder / "log4j2.properties"

    @property
    def ports(self) -> tuple[int, ...]:
        """What it listens on itself; the advertised port is its proxy's."""
        bound = (self.direct, self.controller, self.proxied, self.sasl, self.tls)
        return tuple(filter(None, bound))

    @property
    def formatted(self) -> bool:
        """Whether its data folder is that of a cluster already."""
        return (self.data / "meta.properties").exists()


def new_cluster_id() -> str:
    """A random id in Kafka's spelling; it must not begin with a dash, which is an option."""
    return "b" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii")[1:22]


def layout(folder: Path, count: int, proxied: bool, sasl: bool, tls: bool) -> list[Broker]:
    """Ports and folders of `count` brokers."""
    ports = iter(free_ports(count * 6))
    return [
        Broker(
            number=number,
            folder=folder / f"broker-{number}",
            direct=next(ports),
            controller=next(ports),
            proxied=next(ports) if proxied else 0,
            advertised=next(ports) if proxied else 0,
            sasl=next(ports) if sasl else 0,
            tls=next(ports) if tls else 0,
        )
        for number in range(1, count + 1)
    ]


def write(
    brokers: Sequence[Broker],
    users: Users | None,
    certificates: Certificates | None,
    settings: Mapping[str, str],
) -> None:
    """Write the configuration of every broker into its folder."""
    access = _access(users) if users else {}
    tls = _tls(certificates) if certificates else {}
    shared = {**_shared(brokers), **access, **tls, **settings}
    for broker in brokers:
        broker.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}\n" for name, value in {**_own(broker), **shared}.items()]
        broker.properties.write_text("".join(lines), encoding="utf-8")
        broker.logging.write_text(_LOGGING, encoding="utf-8")


def _own(broker: Broker) -> dict[str, str]:
    bound = {"DIRECT": broker.direct, "PROXIED": broker.proxied}
    bound |= {"SASL": broker.sasl, "TLS": broker.tls}
    advertised = {**bound, "PROXIED": broker.advertised}
    return {
        "node.id": str(broker.number),
        "log.dirs": str(broker.data),
        "listeners": _listeners({**bound, "CONTROLLER": broker.controller}),
        "advertised.listeners": _listeners(advertised),
    }


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items() if port)


def _shared(brokers: Sequence[Broker]) -> dict[str, str]:
    count = len(brokers)
    copies = str(count)
    in_sync = "1" if count == 1 else "2"
    voters = (f"{each.number}@{LOOPBACK}:{each.controller}" for each in brokers)
    return {
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "DIRECT",
        "listener.security.protocol.map": (
            "DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL"
        ),
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # A topic that a test misspells is an error, and not a new topic.
        "auto.create.topics.enable": "false",
        # Few partitions: the first transaction and the first group wait until they are made.
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.num.partitions": "5",
        "share.coordinator.state.topic.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
        # A transaction's timeout is kept to a fraction of a second, so tests may use short ones.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        # A broker that was killed is not let in again before its old session has ended.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        # Small: few threads, and no large buffer for compaction.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }


def _access(users: Users) -> dict[str, str]:
    known = "".join(
        f' user_{name}="{password}"' for name, password in sorted(users.passwords.items())
    )
    modules = "org.apache.kafka.common.security"
    scram = f"{modules}.scram.ScramLoginModule required;"
    # Anonymous clients come through the DIRECT or PROXIED listener: brokers, and tests.
    masters = ("ANONYMOUS", *users.superusers)
    return {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "listener.name.sasl.plain.sasl.jaas.config": (
            f"{modules}.plain.PlainLoginModule required{known};"
        ),
        **{f"listener.name.sasl.{each.lower()}.sasl.jaas.config": scram for each in SCRAM},
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": ";".join(f"User:{name}" for name in masters),
    }


def _tls(certificates: Certificates) -> dict[str, str]:
    stores = {"keystore": certificates.broker, "truststore": certificates.ca}
    settings = {"client.auth": "required"}
    for store, path in stores.items():
        settings |= {f"{store}.type": "PEM", f"{store}.location": str(path)}
    return {f"listener.name.tls.ssl.{name}": value for name, value in settings.items()}


_LOGGING = """\
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
logger.server.name=kafka.server
logger.server.level=INFO
logger.config.name=org.apache.kafka.common.config
logger.config.level=WARN
logger.transaction.name=kafka.coordinator.transaction
logger.transaction.level=INFO
"""
