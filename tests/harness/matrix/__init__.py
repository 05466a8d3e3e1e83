"""The matrix: every source into every sink by both functions, each run with kills in the middle.

What a cell promises is what the analyzer says of its job. What was observed stands beside it: rows
lost, rows twice. ``python -m tests.harness.matrix`` runs it, ``make matrix`` into the docs.
"""
