"""What a decision needs and somebody has deleted: topics with its rows, and markers.

Kafka ends a transaction without a word where the topic is another by now: the answer is "no error",
and the rows are nowhere. So the ids of topics travel with the committable, and are compared at
commit; a topic that was created again has another id. Such an epoch can never be finished, nor can
one whose markers are gone: the errors say what an operator can do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.sink import Prepared
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.topic_ids import TopicIds
from beadline.sinks.kafka.transactions import Client

SURE_S = 5.0  # a broker that is behind with its metadata may know the topic of before
_PAUSE_S = 0.1


def topics_of(parts: Sequence[Prepared[KafkaPart]]) -> TopicIds:
    """Return the topics that parts were written to, with the ids that they had then.

    Where two writers know different ids, one of them looked before the topic was created again:
    either way the ids of now cannot be both, so that the first is enough.
    """
    found: TopicIds = {}
    for part in parts:
        for topic, id_ in part.committable.topics:
            if id_:
                found.setdefault(topic, id_)
    return found


def remade(client: Client, parts: Sequence[Prepared[KafkaPart]], ids: TopicIds | None) -> TopicIds:
    """Return the topics that are others now, or are gone, with the ids of now (empty: gone).

    ``ids`` are those that were told a moment ago. What differs is asked for again, until it is
    sure: a topic whose rows are lost for good must really be another one.
    """
    deadline_s = time.monotonic() + SURE_S
    wanted = topics_of(parts)
    if not wanted:
        return {}
    ids = client.topic_ids(wanted) if ids is None else ids
    while wrong := _wrong(parts, ids):
        if time.monotonic() > deadline_s:
            return wrong
        time.sleep(_PAUSE_S)
        ids = client.topic_ids(wanted)
    return {}


def _wrong(parts: Sequence[Prepared[KafkaPart]], ids: Mapping[str, str]) -> TopicIds:
    """Topics whose id differs; one that the brokers would not tell is not known to."""
    return {
        topic: ids.get(topic, "")
        for part in parts
        for topic, id_ in part.committable.topics
        if id_ and (topic not in ids or (ids[topic] and ids[topic] != id_))
    }


def rows_gone(
    epoch: EpochId,
    sink: str,
    parts: Sequence[Prepared[Any]],
    wrong: TopicIds,
    own: str | None = None,
) -> CommitFailed:
    """Return the error: the transactions are ended, and rows of them are nowhere.

    ``own`` is the topic that the sink itself names: if it is another by now, all that the sink had
    written is gone, and the start wants to hear that it is given up.
    """
    drop = sink if own in wrong else f"{sink}@{epoch.number}"
    names = ", ".join(repr(name) for name in sorted(wrong))
    many = len(wrong) > 1
    what = f"topic{'s' if many else ''} {names} {'were' if many else 'was'} deleted"
    if any(wrong.values()):
        what += " and created again"
    touched = [
        part for part in parts if any(topic in wrong for topic, _ in part.committable.topics)
    ]
    rows = sum(part.rows for part in touched)
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink!r}: {what} after rows of "
        f"this epoch were on their way to it. {len(touched)} of its {len(parts)} parts wrote there "
        f"({rows} rows, those for other topics included), and what was written before the deletion "
        "is gone with the old topic, as are all earlier rows. The epoch is decided and does not "
        "count as committed to this sink; its transactions are ended, so that no reader is held up "
        "and rows for other topics show. Write the missing rows again yourself, or do without "
        f'them, and go on with start(..., drop=["{drop}"]), once; or start over with a new '
        "checkpoint."
    )


def never_known(epoch: EpochId, sink: str, error: LookupError) -> CommitFailed:
    """Return the error where a marker is missing: asking again would find no more."""
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink!r}: it cannot be known "
        f"whether the decided rows show: {error}. No later start will know more. Look for rows of "
        "this epoch in the target, write those that are missing yourself, and go on with "
        f'start(..., drop=["{sink}@{epoch.number}"]), which takes the epoch as settled for this '
        "sink, and touches neither the rows that are there nor other sinks."
    )
