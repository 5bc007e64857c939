"""Stream files: YAML to a specification and back, and what is said where one is wrong."""
