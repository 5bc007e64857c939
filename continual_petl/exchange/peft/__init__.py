"""Writes a bank as an adapter of `peft`."""
