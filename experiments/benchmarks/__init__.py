"""Side-by-side measurements against peers, with one command per table: ``python -m experiments.benchmarks TABLE``."""
