"""Learning with several workers: scheduling, processes, Ray, DDP, and staging of learned banks."""
