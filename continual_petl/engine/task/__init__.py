"""One task: from a fresh bank to its commit, resumable."""
