"""Measurements of this package beside its peers, one command per table: ``python -m experiments.benchmarks TABLE``."""
