"""Prepare a task's data for learning: labels, checks, splits, limits."""
