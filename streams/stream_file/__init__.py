"""Stream files: YAML to a specification and back, with messages for every mistake."""
