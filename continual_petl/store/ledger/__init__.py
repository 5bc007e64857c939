"""``ledger.jsonl``: everything that happened to a run, one sealed line each; its index, its chain and its results."""
