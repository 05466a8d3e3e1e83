"""Faults on purpose: named crash points, and the tools that kill, cut and compare."""
