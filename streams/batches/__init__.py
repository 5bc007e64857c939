"""Turn prepared rows into batches, in an order that can be resumed in the middle of an epoch."""
