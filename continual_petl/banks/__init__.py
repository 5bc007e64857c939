"""Banks: what a task adds to the frozen backbone (specification, presets, arithmetic, attachment)."""
