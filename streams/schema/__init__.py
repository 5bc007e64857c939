"""The schema of a stream, which is checked before any heavy import."""
