"""Checks that run before anything is learned."""
