"""Reads an adapter of `adapters`, the library of AdapterHub, as a bank."""
