"""Callbacks that watch a course and never act on it."""
