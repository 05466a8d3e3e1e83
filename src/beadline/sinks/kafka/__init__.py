"""Kafka: transactions that executors open and the driver ends."""

from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaPart", "KafkaSink"]
