"""Learn one task, from a fresh bank to its commit; an interrupted task can be resumed."""
