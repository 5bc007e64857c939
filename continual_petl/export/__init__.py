"""Exports one learned bank from its run: merged, as a `transformers` checkpoint, or as an adapter of `peft` or `adapters`."""
