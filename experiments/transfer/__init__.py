"""When do earlier banks help a new task? Starting points by hand, chosen by the run, averaged, and a fresh bank."""
