"""Files and batches: work that uses what is idle."""
