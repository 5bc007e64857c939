"""A task of a stream becomes data to learn from: labels, checks, division, limits."""
