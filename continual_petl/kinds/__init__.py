"""The kinds of task, one file each; `continual_petl.kind` describes what a kind decides and finds one by its name."""
