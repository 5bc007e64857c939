"""Answers from learned banks."""
