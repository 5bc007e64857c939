"""Find the task that a row belongs to, using sums that each task stored when it was committed."""
