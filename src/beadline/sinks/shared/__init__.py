"""What several sinks have in common: columns as text, and the core of the SQL databases."""
