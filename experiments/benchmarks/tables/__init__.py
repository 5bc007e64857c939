"""The tables. Each module has ``measure(bench)``, which takes the numbers, and ``body(result)``, which shows them."""
