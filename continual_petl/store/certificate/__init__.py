"""The records kept about a bank: manifest, chain, tombstone, history, findings."""
