"""Figures of a run, each a function from facts to a plotly figure: pages, loggers and notebooks show the same ones."""
