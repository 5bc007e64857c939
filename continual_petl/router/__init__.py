"""Find the task that a row belongs to, using statistics that each task stored when it was committed."""
