"""Reports drawn from a store."""
