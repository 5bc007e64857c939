"""Texts, words and images to numbers, in flat arrays."""
