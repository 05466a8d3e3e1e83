"""What the sinks for SQL databases share; each database adds a ``Dialect`` and its own SQL."""
