"""Published numbers, each in one place with its source, for columns next to ours and for `experiments.ledger`."""
