"""Learn one task, from creating its bank to committing it; an interrupted task can be resumed."""
