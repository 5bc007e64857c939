"""Exchanges banks with other libraries: one bank to `transformers`, `peft` or `adapters`, and their adapters to banks."""
