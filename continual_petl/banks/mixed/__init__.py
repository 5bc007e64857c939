"""Several banks in one pass through the backbone, each on its own rows of the batch."""
