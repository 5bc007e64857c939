"""The tables. Each module has ``measure(bench)``, which does the measurements, and ``body(result)``, which formats them."""
