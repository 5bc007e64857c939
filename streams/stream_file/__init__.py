"""Stream files: convert YAML to a specification and back, with a message for every mistake."""
