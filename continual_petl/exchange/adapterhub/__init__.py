"""Adapters of `adapters`, the library of AdapterHub."""
