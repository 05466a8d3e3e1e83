"""What the commands of `beadline transactions` share: how the cluster and the log are asked.

The settings may hold passwords. They are never shown: not in an error, not where a setting cannot
be understood, and a library's own words are searched for them before they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beadline.environment.quiet import quiet
from beadline.errors import BeadlineError, UsageError
from beadline.extras import require
from beadline.observe.transactions import LogStatus, read_log_status
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka.inspect import Inspector
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.transactions import connect

_NOTHING = "Nothing was changed."


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers, and the log of a query, if it was given."""

    servers: str
    options: Mapping[str, Any]
    inspector: Inspector
    status: LogStatus | None
    topic: str | None

    def control_topic(self, writer: WriterId) -> str:
        """Where the markers of a writer are."""
        if self.topic is not None:
            return self.topic
        if self.status is not None:
            return self.status.control_topic(writer)
        return f"beadline-{writer.query}"


@contextmanager
def asking(
    servers: str,
    pairs: list[str] | None,
    file: Path | None,
    checkpoint: str | None,
    topic: str | None,
) -> Iterator[Cluster]:
    """Yield the cluster; what goes wrong with it is told in Beadline's words."""
    require("kafka")
    options = read_options(pairs or [], file)
    status = None
    if checkpoint is not None:
        quiet()  # a checkpoint on HDFS is read through a JVM
        status = read_log_status(checkpoint)
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what it would say is raised, too
    try:
        _check(servers, options)
        inspector = Inspector(connect(servers, options), servers, options)
        yield Cluster(servers, options, inspector, status, topic)
    except BrokenPipeError:  # whoever read our output has gone
        raise
    except (KafkaError, KafkaException, OSError) as error:
        name = type(error).__name__
        said = kafka_options.redacted(str(error).removeprefix(f"{name}: "), options)
        raise BeadlineError(
            f"Kafka at {servers} does not answer as it should: {name}: {said}. Is it up, is the "
            "address right, are security.protocol and sasl.* what it wants, and may this user do "
            "this? What was not reported as done may not have been done."
        ) from None


def _check(servers: str, options: Mapping[str, Any]) -> None:
    """Let librdkafka look at the settings: the other client does not say what is wrong."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({**kafka_options.client(servers, options), "log_level": 0})
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0]
        why = kafka_options.redacted(str(said.str() if hasattr(said, "str") else said), options)
        raise UsageError(f"Kafka options cannot be used: {why}. {_NOTHING}") from None


def read_options(pairs: list[str], file: Path | None) -> dict[str, str]:
    """Read the settings of the file and of the command line, which wins."""
    found: dict[str, str] = {}
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"--options-file {file}: {why}. {_NOTHING}") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                name, value = _pair(line, f"line {number} of {file}")
                found[name] = value
    for number, pair in enumerate(pairs, 1):
        name, value = _pair(pair, f"--option number {number}")
        found[name] = value
    if "bootstrap.servers" in found:
        raise UsageError(f"bootstrap.servers is said by --bootstrap-servers. {_NOTHING}")
    kafka_options.check(found)
    return found


def _pair(text: str, where: str) -> tuple[str, str]:
    """The text itself may be a password, so an error shows its place only."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise UsageError(f"{where} is not KEY=VALUE. {_NOTHING}")
    return name.strip(), value.strip()
