"""The schema of a stream, checked before anything heavy is imported."""
