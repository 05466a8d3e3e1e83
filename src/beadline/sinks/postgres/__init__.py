"""``PostgresSink`` and what it is made of; see ``sink``."""

from beadline.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
