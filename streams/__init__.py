"""Task streams: the stream file, data sources, tokenised batches."""
