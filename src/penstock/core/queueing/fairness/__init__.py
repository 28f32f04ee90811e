"""Which flow is served next in a band: the queue tree, and one file per policy."""
