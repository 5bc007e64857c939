"""Prepared rows to batches, in an order that can be resumed in the middle of an epoch."""
