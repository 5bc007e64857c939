"""A first stream file, made by looking at data: which columns mean what, and what kind of task that is."""
