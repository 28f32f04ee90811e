"""Sources of endpoints beside the settings file; each says the complete set it wants, whenever that changes."""
