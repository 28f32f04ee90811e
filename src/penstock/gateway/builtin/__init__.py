"""Which paths does the gateway answer itself? `paths.py`: alive, ready, models, metrics. `queue.py`: how a caller
stands.
"""
