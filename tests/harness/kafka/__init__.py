"""The same from Kafka to Kafka: a job that never ends, a reader that never looks away."""
