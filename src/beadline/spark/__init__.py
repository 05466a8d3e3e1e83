"""What drives Spark: the running query, the engine, worker tasks, its checkpoint and settings."""
