"""Prepared rows to batches, in an order that can go on in the middle of an epoch."""
