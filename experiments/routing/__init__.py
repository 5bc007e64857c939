"""How well rows without a task name are routed to their task, and what this costs in accuracy."""
