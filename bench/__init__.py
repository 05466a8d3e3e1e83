"""Benchmarks: each ``make bench-NAME`` compares both sides in one run and ends in one JSON line."""
