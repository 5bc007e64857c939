"""Exports one learned bank from its run: as a plain `transformers` checkpoint, or as an adapter that `peft` loads."""
