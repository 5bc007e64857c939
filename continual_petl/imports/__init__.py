"""Turns adapters that other libraries wrote into banks."""
