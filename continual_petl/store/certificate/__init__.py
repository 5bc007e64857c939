"""The records kept about a bank: certificate, chain, tombstone, history, findings."""
