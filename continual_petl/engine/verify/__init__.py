"""Verify a run: the chain and each certificate, in one process or several."""
