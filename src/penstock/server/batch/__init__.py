"""Files and batches over HTTP, and the way of their items to the scheduler."""
