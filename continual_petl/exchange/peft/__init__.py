"""Adapters of `peft`."""
