"""``MySqlSink``: rows into a table of MySQL or MariaDB, each once."""

from beadline.sinks.mysql.sink import MySqlSink

__all__ = ["MySqlSink"]
