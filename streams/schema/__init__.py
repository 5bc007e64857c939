"""What a stream may say, as data: checked before anything heavy is imported."""
