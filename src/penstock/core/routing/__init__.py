"""Where a request goes, of the endpoints that are open to it: one file per policy behind one interface."""
