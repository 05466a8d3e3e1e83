"""The ids of topics: Kafka gives a topic one when it is created, and never to another.

So a topic that was deleted and created again has another id under the old name. Both clients tell
them, each in a form of its own; here they are text, as Kafka's own tools print it, and empty where
an id is not told: brokers before 2.8 have none.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection
from typing import Any

TopicIds = dict[str, str]  # by the topic's name
_NONE = "A" * 22  # 16 bytes of zeros
_AS_KAFKA = str.maketrans("+/", "-_")  # librdkafka writes the other base64


def described(topic: Any) -> str:
    """Return the id in an answer to confluent-kafka's ``describe_topics``."""
    id_ = str(topic.topic_id).translate(_AS_KAFKA)
    return "" if id_ == _NONE else id_


def request(topics: Collection[str]) -> Any:
    """Return kafka-python's question for the ids of topics; it creates none."""
    from kafka.protocol.metadata import MetadataRequest

    named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False)


def answered(response: Any) -> TopicIds:
    """Return the ids in the answer to it, without topics that are known not to exist."""
    unknown = 3  # UNKNOWN_TOPIC_OR_PARTITION
    return {
        topic.name: "" if topic.error_code else _text(topic.topic_id)
        for topic in response.topics
        if topic.error_code != unknown
    }


def _text(id_: uuid.UUID | None) -> str:
    if id_ is None or not id_.int:
        return ""
    return base64.urlsafe_b64encode(id_.bytes).decode().rstrip("=")
