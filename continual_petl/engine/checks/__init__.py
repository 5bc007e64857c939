"""Checks before anything is learned."""
