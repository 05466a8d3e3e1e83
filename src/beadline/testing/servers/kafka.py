"""A real Kafka, one or three brokers that are their own controllers, on the loopback interface.

::

    with kafka() as cluster:
        cluster.create_topic("orders", partitions=2)
        Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.read("orders")  # what a read_committed consumer sees

Real, because what Beadline needs of Kafka is in its broker: who may end a transaction, what an
open one hides, what a restart forgets. `transaction_version=0` is the protocol of brokers before
4.0, where ending a transaction leaves the producer epoch alone. Settings are Kafka's own except for
what makes it small, quick to start, and quick to see a death or a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from beadline.testing.servers import kafka_settings, maven, pins
from beadline.testing.servers.certificates import certificates
from beadline.testing.servers.java import java_command
from beadline.testing.servers.kafka_client import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    KafkaRecord,
    create_topic,
    end_offsets,
    has_leaders,
    is_complete,
    read,
)
from beadline.testing.servers.kafka_settings import Broker, Users
from beadline.testing.servers.ports import LOOPBACK
from beadline.testing.servers.process import ServerProcess, run_to_end, wait_until
from beadline.testing.servers.running import need_client, running, work_folder
from beadline.verify.proxy import TcpProxy

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "KafkaCluster", "KafkaRecord", "kafka"]

_START_TIMEOUT_S = 90
_STOP_S = 3
_HEAP_MB = 512
_JAVA_OPTIONS = ("-Xms256m",)


class KafkaCluster:
    """A running Kafka.

    A fault test may `kill` and `restart` its `brokers`, and then `wait_ready`: ports and data stay.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        transaction_version: int = 2,
        settings: Mapping[str, str] | None = None,
        proxied: bool = False,
        users: Mapping[str, str] | None = None,
        superusers: Sequence[str] = ("admin",),
        tls: bool = False,
    ) -> None:
        """Lay out the folder; `start` starts."""
        need_client("kafka")
        folder = folder.resolve()  # brokers run in it, so a relative path would lead elsewhere
        self._folder = folder
        self._transaction_version = transaction_version
        self._class_path = [maven.jars(pins.KAFKA) / "*"]
        self._users = Users(users, tuple(superusers)) if users else None
        #: Whom to trust and who to be on the TLS listener; None unless `tls`.
        self.certificates = certificates(folder / "certificates") if tls else None
        layout = kafka_settings.layout(folder, brokers, proxied, bool(users), tls)
        kafka_settings.write(layout, self._users, self.certificates, settings or {})
        self._layout = layout
        self.brokers = [self._server(each) for each in layout]
        self.bootstrap_servers = _servers(each.direct for each in layout)
        #: Through the proxies; empty unless `proxied`.
        self.proxied_servers = _servers(each.advertised for each in layout if each.advertised)
        self.proxies = [TcpProxy(each.proxied, port=each.advertised) for each in layout if proxied]
        #: SASL_PLAINTEXT with PLAIN or SCRAM; empty unless there are `users`.
        self.sasl_servers = _servers(each.sasl for each in layout if each.sasl)
        #: SSL, for clients that have a certificate; empty unless `tls`.
        self.tls_servers = _servers(each.tls for each in layout if each.tls)

    def start(self) -> None:
        """Format what is new, start brokers and proxies, and wait until they serve."""
        identity = kafka_settings.new_cluster_id()
        for each in self._layout:
            if not each.formatted:
                self._format(each, identity)
        for proxy in self.proxies:
            proxy.start()
        for broker in self.brokers:
            broker.start()
        self.wait_ready()

    def stop(self) -> None:
        """Stop proxies and brokers; the folder stays."""
        for proxy in self.proxies:
            proxy.stop()
        # All at once, and not for long: the last of three waits in vain for a majority to
        # confirm its shutdown. A kill costs Kafka no data.
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(lambda broker: broker.stop(_STOP_S), self.brokers))

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when all brokers are in, and every partition has a leader and all its replicas."""
        servers, count = self.bootstrap_servers, len(self.brokers)
        what = "Kafka to have all brokers and replicas"
        wait_until(lambda: is_complete(servers, count), what, self.brokers, timeout_s)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create it, on all brokers unless told otherwise, and wait until it has its leaders."""
        servers = self.bootstrap_servers
        create_topic(servers, name, partitions, replication or len(self.brokers), config or {})
        what = f"leaders of {name}"
        wait_until(lambda: has_leaders(servers, name, partitions), what, ())

    def end_offsets(self, topic: str, isolation: str = READ_UNCOMMITTED) -> dict[int, int]:
        """The offset after the last, by partition; of `read_committed` the last stable offset."""
        return end_offsets(self.bootstrap_servers, topic, isolation)

    def read(
        self, topic: str, isolation: str = READ_COMMITTED, timeout_s: float = 30
    ) -> list[KafkaRecord]:
        """Every record that a new consumer sees now, by partition and offset.

        A coordinator answers a commit before the markers are in the partitions. So that what was
        committed before this call is seen by it, markers that are under way are waited for. Open
        transactions are not: `read_committed` ends before the first of them.
        """
        return read(self.bootstrap_servers, topic, isolation, timeout_s)

    def _server(self, broker: Broker) -> ServerProcess:
        logging = f"-Dlog4j2.configurationFile={broker.logging.as_uri()}"
        command = java_command(
            "kafka.Kafka",
            self._class_path,
            str(broker.properties),
            heap_mb=_HEAP_MB,
            options=(*_JAVA_OPTIONS, logging),
        )
        return ServerProcess(broker.name, command, self._folder, ports=broker.ports)

    def _format(self, broker: Broker, identity: str) -> None:
        arguments = ["format", "--cluster-id", identity, "--config", str(broker.properties)]
        arguments += ["--feature", f"transaction.version={self._transaction_version}"]
        arguments += self._users.scram if self._users else []
        command = java_command("kafka.tools.StorageTool", self._class_path, *arguments)
        run_to_end(f"format-{broker.name}", command, self._folder, _START_TIMEOUT_S)


@contextmanager
def kafka(
    brokers: int = 1,
    transaction_version: int = 2,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    proxied: bool = False,
    users: Mapping[str, str] | None = None,
    superusers: Sequence[str] = ("admin",),
    tls: bool = False,
) -> Iterator[KafkaCluster]:
    """A Kafka for the length of a `with`, in a temporary folder unless one is given.

    `settings` are brokers' properties, and win over those that are set here. With `proxied`,
    `cluster.proxied_servers` leads through the fault injectors in `cluster.proxies`, one for each
    broker. With `users` (names and passwords) `cluster.sasl_servers` is a way in where only
    `superusers` may do anything until ACLs say so; the plain one stays open for the test itself.
    With `tls`, `cluster.tls_servers` lets in who has one of the `cluster.certificates`; with
    `users` too, by its name, which is `CN=client`.

    Raises `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    with work_folder("kafka", folder) as work:
        made = KafkaCluster(
            work,
            brokers=brokers,
            transaction_version=transaction_version,
            settings=settings,
            proxied=proxied,
            users=users,
            superusers=superusers,
            tls=tls,
        )
        with running(made) as cluster:
            yield cluster


def _servers(ports: Iterable[int]) -> str:
    return ",".join(f"{LOOPBACK}:{port}" for port in ports)
