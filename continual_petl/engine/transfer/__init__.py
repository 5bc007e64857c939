"""Start a bank from earlier banks that may help: ``start_from: auto`` and averages. Earlier banks are only read."""
