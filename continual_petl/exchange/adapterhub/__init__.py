"""Writes a bank as an adapter of `adapters`, the library of AdapterHub."""
