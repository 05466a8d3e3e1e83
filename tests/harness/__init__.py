"""What only we run: chains of kills into any sink, from Kafka to Kafka, and the matrix."""
