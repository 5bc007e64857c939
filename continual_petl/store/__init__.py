"""The store: learned banks on disk, with their certificates."""
