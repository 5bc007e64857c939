"""Several workers: scheduling, processes, Ray, DDP, and staging of what they learned."""
