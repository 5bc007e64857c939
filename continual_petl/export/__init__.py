"""Takes one learned bank out of its run: a plain `transformers` checkpoint, or an adapter that `peft` loads."""
