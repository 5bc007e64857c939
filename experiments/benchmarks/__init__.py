"""Side-by-side measurements against peers, each table by one command: ``python -m experiments.benchmarks TABLE``."""
