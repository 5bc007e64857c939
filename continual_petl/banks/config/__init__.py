"""How banks are specified: forms and their options, presets with recipes, layer ranges. Nothing here imports torch."""
