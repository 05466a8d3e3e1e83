"""What sinks have in common: retries, and secrets kept out of texts."""
