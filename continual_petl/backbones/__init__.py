"""Backbones: where the sites of a bank are in each model family."""
