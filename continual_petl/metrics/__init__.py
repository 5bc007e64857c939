"""Metrics of continual learning, as pure functions of the result matrix."""
