"""When do earlier banks help a new task? Starting points chosen by hand or by the run, averaged banks, and a fresh bank."""
