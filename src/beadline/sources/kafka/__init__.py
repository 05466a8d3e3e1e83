"""Kafka as a source: its reader, the topics it reads, and positions for lag tools."""

from beadline.sources.kafka.source import kafka

__all__ = ["kafka"]
