"""Pages drawn from facts: what is written, and how it looks."""
