"""HTML pages drawn from facts: their content and layout."""
