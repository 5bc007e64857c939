"""LEDGER.md: published numbers beside ours, generated from `experiments.published` and the raw results."""
