"""For sinks, sources and jobs: retries, locks, secrets, rows as JSON, options, topic ids."""
