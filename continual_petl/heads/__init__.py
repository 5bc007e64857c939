"""Heads: one head and one loss per kind of task."""
