"""Rows into a SQLite table, staged at prepare and written in one transaction."""

from beadline.sinks.sqlite.sink import SqliteSink

__all__ = ["SqliteSink"]
