"""Benchmarks of this package and its peers, one command per table: ``python -m experiments.benchmarks TABLE``."""
