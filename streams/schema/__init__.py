"""The schema of a stream file, checked before anything heavy is imported."""
