"""The layers of the scheduler; `core/scheduler.py` says how to read them."""
