"""Parameters and memory of banks on published decoders of 0.6 to 8 billion parameters, computed without their weights."""
