"""Continual learning that provably forgets nothing."""
