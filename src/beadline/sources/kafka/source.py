"""Kafka topics as a stream, through Spark's own connector.

Thin on purpose: Spark keeps the positions in its checkpoint, which is what exactly-once rests on,
and reads the same records again when an epoch is redelivered. What is added are the defaults that
one would set after the first incident, and an error for each option that would lose rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from beadline import extras
from beadline.environment.jars import require_connector
from beadline.errors import BadQuery, BadSetting, SourceGone
from beadline.guarantee.options import check_options
from beadline.shared.options import option_text
from beadline.shared.secrets import SECRET_NAME, redacted
from beadline.sources.kafka.positions import GROUP_OPTION, Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Option = str | int | bool

_DEFAULTS: Mapping[str, str] = {
    # A record counts when its transaction is committed; until then it may yet be aborted.
    "kafka.isolation.level": "read_committed",
    "failOnDataLoss": "true",
    # Kafka's own defaults hand a Spark task 500 records at a time: a third of its time goes there.
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    # The last fetch of an epoch asks for what is not there yet, and Spark's questions for offsets
    # wait behind it on the same connection: half a second of every epoch by Kafka's own default.
    "kafka.fetch.max.wait.ms": "5",
    # As the operating system sees fit: Kafka's own 64 KiB make a fetch a hundred small reads.
    "kafka.receive.buffer.bytes": "-1",
}
# Options by which rows are lost, or rows are read that were never committed; in lower case.
_REFUSED = {
    ("kafka.isolation.level", "read_uncommitted"): "records of transactions that are still open or "
    "were aborted would be read, and an epoch redelivered could have other rows",
    ("failondataloss", "false"): "records that Kafka has deleted before they were read would be "
    "skipped silently. If they are gone and you accept it, start with a new checkpoint",
}
# Options that are arguments here.
_ARGUMENTS = {
    "kafka.bootstrap.servers": "bootstrap_servers=",
    "subscribe": "topic= or topics=",
    "subscribepattern": "pattern=",
    "startingoffsets": "starting=",
    "maxoffsetspertrigger": "max_per_epoch=",
    "includeheaders": "headers=",
    GROUP_OPTION: "group=",
}
_ASSIGN = "assign"  # single partitions, in Spark's own JSON: the one way that is no argument here
_SERVER = re.compile(r"([\w+-]+://)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}\Z")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_LOST_RECORDS = re.compile(r"(?i)failOnDataLoss|KAFKA_DATA_LOSS")
_WHY_LOST = re.compile(r"Reason: (.+)|\[KAFKA_DATA_LOSS\.\w+\] (.+)|(Partition .+? offset .+)")


def kafka(
    spark: SparkSession,
    *,
    bootstrap_servers: str | Sequence[str],
    topic: str | None = None,
    topics: Sequence[str] | None = None,
    pattern: str | None = None,
    starting: str | Offsets = "earliest",
    group: str | None = None,
    max_per_epoch: int | None = None,
    headers: bool = False,
    options: Mapping[str, Option] | None = None,
) -> DataFrame:
    """Read records of one topic, several topics, or every topic that matches a pattern.

    Guarantee: exactly-once, as long as Kafka keeps the records until their epoch is committed; if
    it has deleted them, the query fails. Only committed transactions are read. The columns are
    Spark's: ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``,
    ``timestampType``, and ``headers`` if asked for.

    ``starting`` counts for a new checkpoint only: ``"earliest"``, ``"latest"``, or an offset for
    every partition, ``{"orders": {0: 23, 1: 42}}`` (-2 is the earliest, -1 the latest).
    ``max_per_epoch`` bounds the records of an epoch; without it, the first epoch reads the whole
    backlog.

    ``group`` names a consumer group to which the positions of each committed epoch are written
    too, for lag tools. They are never read back: let no other consumer use that group.

    ``options`` go to Spark's connector, ``kafka.`` before Kafka's own: ``{"kafka.sasl.mechanism":
    "PLAIN"}``. The session needs the connector's jars: ``session(..., connectors=("kafka",))``.
    """
    given = {name: option_text(value) for name, value in (options or {}).items()}
    _check_options(given)
    settings = {
        **_without(_DEFAULTS, given),
        **given,
        "kafka.bootstrap.servers": _servers(bootstrap_servers),
        **_subscription(topic, topics, pattern, given),
        "startingOffsets": _starting(starting),
        "includeHeaders": option_text(headers),
    }
    if max_per_epoch is not None:
        if max_per_epoch < 1:
            raise BadSetting(f"kafka(): max_per_epoch is at least 1, not {max_per_epoch}")
        settings["maxOffsetsPerTrigger"] = str(max_per_epoch)
    if group is not None:
        if not group.strip():
            raise BadSetting("kafka(): group= is the name of a consumer group, or is left out")
        extras.require("kafka")
        settings[GROUP_OPTION] = group
    require_connector(spark, "kafka")
    return _load(spark, settings)


def _load(spark: SparkSession, settings: Mapping[str, str]) -> DataFrame:
    """Spark checks the options now, not at the start of the query."""
    from pyspark.errors import PySparkException

    try:
        return spark.readStream.format("kafka").options(**settings).load()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        hidden = [value for name, value in settings.items() if SECRET_NAME.search(name)]
        # Not "from error": its text may hold the secret that was just taken out.
        raise BadSetting(
            f"kafka(): Spark refuses the options: {redacted(reason, hidden)}"
        ) from None


def _check_options(options: Mapping[str, str]) -> None:
    """Values are named only where they are known to be no secret."""
    seen: set[str] = set()
    for name, value in options.items():
        small = name.lower()
        if small in seen:
            raise BadSetting(f"kafka(): option {name} is given twice, in upper and in lower case")
        seen.add(small)
        if small in _ARGUMENTS:
            raise BadSetting(
                f"kafka(): option {name} is an argument here: give {_ARGUMENTS[small]}"
            )
        why = _REFUSED.get((small, value.strip().lower()))
        if why:
            raise BadSetting(f"kafka(): option {name}={value} would break exactly-once: {why}.")
    check_options("kafka", options, "kafka()")


def _servers(servers: str | Sequence[str]) -> str:
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    listed = [server.strip() for server in listed if server.strip()]
    if not listed:
        raise BadSetting(
            'kafka(): bootstrap_servers is empty; give "host:port" of a broker, or of several with '
            "commas between them"
        )
    for server in listed:
        if not _SERVER.match(server):
            raise BadSetting(
                f'kafka(): bootstrap_servers: {server!r} is not of the form "host:port"'
            )
    return ",".join(listed)


def _subscription(
    topic: str | None,
    topics: Sequence[str] | None,
    pattern: str | None,
    options: Mapping[str, str],
) -> dict[str, str]:
    """Return what to read, given in exactly one way."""
    ways = {"topic=": topic, "topics=": topics, "pattern=": pattern}
    used = [way for way, value in ways.items() if value is not None]
    used += [f"option {name}" for name in options if name.lower() == _ASSIGN]
    if len(used) != 1:
        what = " and ".join(used) + " exclude each other" if used else "no topic is given"
        raise BadQuery(
            f'kafka(): {what}; give one of topic="orders", topics=["orders", "returns"], '
            'pattern="orders-.*"'
        )
    if topic is None and topics is None and pattern is None:
        return {}
    if pattern is not None:
        if not pattern:
            raise BadQuery('kafka(): pattern= is empty; a pattern for every topic is ".*"')
        return {"subscribePattern": pattern}
    if isinstance(topics, str):
        raise BadQuery(f"kafka(): topics= is a list; for one topic give topic={topics!r}")
    names = [topic] if topic is not None else list(topics or ())
    if not names:
        raise BadQuery("kafka(): topics= is an empty list")
    for name in names:
        if not isinstance(name, str) or not _TOPIC.match(name):
            raise BadQuery(
                f"kafka(): {name!r} is not a topic name (letters, digits, '.', '_' and '-'); "
                "several go into topics=[...], a regular expression into pattern="
            )
    return {"subscribe": ",".join(names)}


def _starting(starting: str | Offsets) -> str:
    """Return Spark's form: a word, or JSON whose keys are text."""
    if starting in ("earliest", "latest"):
        return str(starting)
    if not isinstance(starting, Mapping) or not starting:
        raise BadSetting(
            'kafka(): starting= is "earliest", "latest", or offsets such as {"orders": {0: 23}}, '
            f"not {starting!r}"
        )
    for topic, offsets in starting.items():
        numbers = offsets.items() if isinstance(offsets, Mapping) else ()
        fine = all(_is_int(p, 0) and _is_int(o, -2) for p, o in numbers)
        if not numbers or not fine:
            raise BadSetting(
                f"kafka(): starting= of topic {topic!r} must give an offset for each of its "
                f"partitions, such as {{0: 23, 1: 42}} (-2 earliest, -1 latest), not {offsets!r}"
            )
    return json.dumps({t: {str(p): o for p, o in each.items()} for t, each in starting.items()})


def _is_int(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _without(defaults: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Spark ignores the case of option names, so overriding a default must too."""
    small = {name.lower() for name in given}
    return {name: value for name, value in defaults.items() if name.lower() not in small}


def with_advice(error: BaseException | None, query: str) -> BaseException | None:
    """Return Spark's error, or ours in its place if it reports that records are gone.

    Spark's own advises ``failOnDataLoss=false``, by which records are skipped silently, and which
    is refused here.
    """
    text = str(error)
    if error is None or not _LOST_RECORDS.search(text):
        return error
    found = _WHY_LOST.search(text)
    why = next(filter(None, found.groups()), "") if found else ""
    why = re.split(r"(?i)[^.;]*failOnDataLoss", why)[0].strip().rstrip(".:;")
    return SourceGone(
        f"query {query!r}: Kafka no longer has all of the records that come next: they were "
        "deleted before they were read (by age, by hand, or with their topic)"
        f"{f'; Spark says: {why[:300]}' if why else ''}. Every epoch that is decided is complete, "
        "and nothing was skipped. Restore the records; or, if they are gone and you accept it, "
        "start with a new checkpoint folder and starting= at the first offsets that are there, and "
        "keep records for longer than the query may be down (retention.ms)."
    )
