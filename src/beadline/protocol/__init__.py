"""The protocol, one noun per file, on a log and a way to run ``prepare``; no Spark in here."""
