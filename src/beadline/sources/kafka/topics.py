"""Which Kafka topics a query reads, by the ids that Kafka gave them when they were created.

A topic that was deleted and created again has the same name and other records, and the offsets in
Spark's checkpoint say nothing of it: if it has as many records as the old one had, Spark silently
continues in the middle of them. So the ids are kept in the decision log and compared, at each start
and before each decision; where nothing is decided (at-least-once), before an epoch is done.

That costs no time of an epoch's own: the question is asked when the epoch begins, on a thread
beside it, and counts for the decision if that comes soon after. What becomes of a topic later than
that is found by the next epoch, or by the next start.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from beadline import extras
from beadline.errors import NEW_QUERY, NOTHING_WRITTEN, BadSetting, PrepareFailed, WrongCheckpoint
from beadline.files import FileSystem, join, open_files
from beadline.shared.topic_ids import topic_id
from beadline.sources.kafka.positions import parse_offsets
from beadline.sources.kafka.settings import PREFIX, librdkafka_settings

logger = logging.getLogger("beadline")

SERVERS = "kafka.bootstrap.servers"
FRESH_S = 0.2
_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 2.0  # readers may be held up until the start has settled what is open


class Asker(Protocol):
    """Asks one cluster."""

    def ids(self, topics: Collection[str], timeout_s: float) -> dict[str, str]:
        """Return the ids of topics, without those that do not exist or have none."""

    def close(self) -> None:
        """End the connection."""


class SourceInstances(NamedTuple):
    """The instances of all sources, and when they were asked for."""

    asked_at_s: float
    sources: dict[str, str]


class SourceTopics:
    """The topics of one query's Kafka sources; nothing at all if it has none."""

    def __init__(
        self,
        sources: Sequence[Mapping[str, str]],
        checkpoint: str,
        jvm: Any = None,
        files: FileSystem | None = None,
    ) -> None:
        """``sources`` are the options of every source, in the order of Spark's offset log."""
        self._sources = {number: one for number, one in enumerate(sources) if SERVERS in one}
        self._count = len(sources)
        self._checkpoint = checkpoint
        self._files = files or open_files(checkpoint)
        self._jvm = jvm
        self._askers: dict[int, Asker] = {}
        self._asking: Future[SourceInstances] | None = None
        self._epoch: int | None = None
        self._beside: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def begin(self, epoch: int) -> None:
        """Begin to ask for what an epoch reads, whose offsets are planned by now."""
        if not self._sources:
            return
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, thread_name_prefix="beadline-topics")
        self._epoch = epoch
        self._asking = self._beside.submit(self._ask, epoch, _TIMEOUT_S)

    def now(self) -> dict[str, str]:
        """Return the id of each topic that is read, by a name for people.

        Before the first epoch of a start, a source that does not answer is left out: what was
        decided must be finished all the same (rule 15), and the first decision asks again. During
        an epoch the error leaves out what it means, which the protocol knows.
        """
        if not self._sources:
            return {}
        if self._asking is None or self._epoch is None:
            return self._at_start()
        try:
            answer = self._asking.result()
            if time.monotonic() - answer.asked_at_s > FRESH_S:
                answer = self._ask(self._epoch, _TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 (of either client; none of them is an answer)
            raise PrepareFailed(
                f"epoch {self._epoch}: Kafka does not say whether the topics that were read are "
                f"still the same ones: {_said(error)}. Start again when it answers."
            ) from None
        return answer.sources

    def close(self) -> None:
        """End the thread and the connections."""
        if self._beside is not None:
            self._beside.shutdown(wait=False)
        with self._lock:
            while self._askers:
                self._askers.popitem()[1].close()

    def _at_start(self) -> dict[str, str]:
        names = self._files.names(join(self._checkpoint, "offsets"))
        newest = max((int(name) for name in names if name.isdigit()), default=None)
        self._check_subscribed(newest)
        try:
            return self._ask(newest, _START_TIMEOUT_S).sources
        except Exception as error:  # noqa: BLE001 (asked again before anything is decided)
            logger.warning(
                "whether the source's Kafka topics are still the same ones cannot be asked now, "
                "and will be before the next epoch is decided: %s",
                _said(error),
            )
            return {}

    def _ask(self, epoch: int | None, timeout_s: float) -> SourceInstances:
        asked_at_s = time.monotonic()
        found: dict[str, str] = {}
        for number, topics in self._topics(epoch).items():
            where = f" (source {number})" if len(self._sources) > 1 else ""
            for topic, id_ in self._asker(number).ids(topics, timeout_s).items():
                found[f"Kafka topic {topic!r}{where}"] = id_
        return SourceInstances(asked_at_s, found)

    def _check_subscribed(self, epoch: int | None) -> None:
        """A source that names its topics must name all that the checkpoint has read.

        Spark would plan an epoch without the others, write that down, and fail: it then fails with
        the right topics too, although nothing was lost.
        """
        for number, offsets in enumerate(self._offsets(epoch)):
            named = subscribed(self._sources.get(number, {}))
            if named and (left_out := sorted(offsets.keys() - named)):
                where = f"source {number} of the query" if self._count > 1 else "the query"
                raise WrongCheckpoint(
                    f"checkpoint {self._checkpoint}: {where} has read Kafka topic "
                    f"{_names(left_out)}, and is now to read {_names(named)} only. Positions in "
                    f"one topic say nothing of another. Name {_names(left_out)} again (others may "
                    f"be added). {NEW_QUERY} {NOTHING_WRITTEN}"
                )

    def _topics(self, epoch: int | None) -> dict[int, list[str]]:
        """Return the topics of each Kafka source, by an epoch's offsets or by its options."""
        offsets = self._offsets(epoch)
        return {
            number: sorted(offsets[number]) if offsets else subscribed(options)
            for number, options in self._sources.items()
        }

    def _offsets(self, epoch: int | None) -> Sequence[Mapping[str, Any]]:
        """Return each source's end offsets of an epoch; none where they cannot be read."""
        data = None
        if epoch is not None:
            data = self._files.read(join(self._checkpoint, "offsets", str(epoch)))
        if data is not None:
            with suppress(ValueError):  # of a version that is not known here
                return parse_offsets(data.decode(), self._count)
        return ()

    def _asker(self, number: int) -> Asker:
        """One client per source: two sources may be two clusters."""
        with self._lock:
            if number not in self._askers:
                self._askers[number] = _asker(self._sources[number], self._jvm)
            return self._askers[number]


def subscribed(options: Mapping[str, str]) -> list[str]:
    """Return the topics that a source's options name; none for a pattern."""
    small = {name.lower(): value for name, value in options.items()}
    if "assign" in small:
        with suppress(ValueError, AttributeError):
            return sorted(json.loads(small["assign"]))
    return sorted(filter(None, (name.strip() for name in small.get("subscribe", "").split(","))))


def _asker(options: Mapping[str, str], jvm: Any) -> Asker:
    """Python's client takes a twentieth of the time; Java's understands every setting."""
    if not extras.missing("kafka"):
        from confluent_kafka import KafkaException

        with suppress(BadSetting, KafkaException):
            return Librdkafka(librdkafka_settings(options))
    return JavaAdmin(jvm, options)


class Librdkafka:
    """Asks through confluent-kafka."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Connects when it is asked."""
        from confluent_kafka.admin import AdminClient

        self._admin: Any = AdminClient({**settings, "log_level": "0"})

    def ids(self, topics: Collection[str], timeout_s: float) -> dict[str, str]:
        """Ask for all of them at once."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if not topics:
            return {}
        found = {}
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=timeout_s
        )
        for topic, future in asked.items():
            try:
                found[topic] = topic_id(future.result(timeout_s + 1))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return {topic: id_ for topic, id_ in found.items() if id_}

    def close(self) -> None:
        """Nothing to do: it ends with the object."""


class JavaAdmin:
    """Asks through the client that Spark's connector brings, with the very settings of the source.

    For what has no counterpart in Python: a JKS key store, a login module of one's own.
    """

    def __init__(self, jvm: Any, options: Mapping[str, str]) -> None:
        """Connects when it is asked."""
        admin = jvm.org.apache.kafka.clients.admin
        known = set(admin.AdminClientConfig.configNames())
        settings = jvm.java.util.HashMap()
        for name, value in options.items():
            if name.lower().startswith(PREFIX) and name[len(PREFIX) :].lower() in known:
                settings.put(name[len(PREFIX) :].lower(), value)
        self._jvm = jvm
        self._admin = admin.Admin.create(settings)

    def ids(self, topics: Collection[str], timeout_s: float) -> dict[str, str]:
        """Ask for all of them at once."""
        from py4j.protocol import Py4JJavaError

        if not topics:
            return {}
        asked = self._admin.describeTopics(self._jvm.java.util.List.of(*topics))
        unit = self._jvm.java.util.concurrent.TimeUnit.SECONDS
        answers = asked.topicNameValues()
        none = self._jvm.org.apache.kafka.common.Uuid.ZERO_UUID.toString()
        found = {}
        for topic in topics:
            try:
                found[topic] = answers.get(topic).get(int(timeout_s), unit).topicId().toString()
            except Py4JJavaError as error:
                if "UnknownTopicOrPartitionException" not in str(error.java_exception):
                    raise OSError(str(error.java_exception)) from None
        return {topic: id_ for topic, id_ in found.items() if id_ != none}

    def close(self) -> None:
        """End its thread in the JVM, unless that has ended itself."""
        from py4j.protocol import Py4JError

        with suppress(Py4JError, OSError):
            self._admin.close(self._jvm.java.time.Duration.ZERO)


def _names(topics: Collection[str]) -> str:
    return ", ".join(repr(topic) for topic in topics)


def _said(error: Exception) -> str:
    """The client's own error; neither client shows a setting's value in it."""
    said = error.args[0] if error.args else error
    return str(said.str()) if hasattr(said, "str") else f"{type(error).__name__}: {error}"
