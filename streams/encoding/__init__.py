"""Texts, words and images to numbers, kept flat."""
