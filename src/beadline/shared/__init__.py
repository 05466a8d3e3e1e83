"""What sinks, sources and jobs have in common: retries, redaction of secrets, rows as JSON."""
