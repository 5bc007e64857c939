"""Reads an adapter of `peft` as a bank."""
