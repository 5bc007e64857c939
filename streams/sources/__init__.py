"""Sources of rows: files, the Hub, the stream file itself, the embedded data sets."""
