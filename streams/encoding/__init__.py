"""Encode texts, words and images as numbers, in flat arrays."""
