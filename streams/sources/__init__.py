"""Where rows come from: files, the Hub, the stream file itself, the embedded data sets."""
