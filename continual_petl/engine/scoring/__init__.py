"""Scores of one bank on one split, and of one row of the result matrix."""
