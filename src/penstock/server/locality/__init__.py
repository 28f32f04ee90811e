"""Who holds the prefix of a prompt: what is asked of engines and caches, outside of the core."""
