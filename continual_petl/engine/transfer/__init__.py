"""Where a bank starts when earlier banks may help: ``start_from: auto`` and averages. Earlier banks are only read."""
