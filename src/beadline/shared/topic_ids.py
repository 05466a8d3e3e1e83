"""What sources and sinks on Kafka have in common: the id that a topic was given when it was made.

Ids are text here, as Kafka's own tools print it, and empty where the broker has none: those before
2.8.
"""

from __future__ import annotations

from typing import Any

_NONE = "A" * 22  # 16 bytes of zeros
_AS_KAFKA = str.maketrans("+/", "-_")  # librdkafka writes the other base64


def topic_id(described: Any) -> str:
    """Return the topic's id in an answer to confluent-kafka's ``describe_topics``."""
    id_ = str(described.topic_id).translate(_AS_KAFKA)
    return "" if id_ == _NONE else id_
