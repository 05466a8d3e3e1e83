"""What sinks, sources and jobs have in common: retries, locks, secrets, rows as JSON, topic ids."""
