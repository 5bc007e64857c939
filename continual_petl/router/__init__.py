"""Find the task that a row belongs to, from sums that each task stored when it was committed."""
