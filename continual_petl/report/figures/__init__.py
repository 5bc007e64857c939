"""Figures of a run, each a function from facts to plotly JSON: pages, loggers and notebooks show the same ones."""
