"""Jobs for ``beadline verify``, each with a sink that breaks one rule, and one that breaks none."""
