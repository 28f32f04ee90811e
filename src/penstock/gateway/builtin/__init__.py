"""Which paths does the gateway answer itself? `paths.py`: alive, ready, models, metrics. `queue.py`: how a caller
stands. `engine_paths.py`: engines by their names, put to sleep and woken. `autoscale.py`: how many of them it takes.
`operators.py`: which paths are not for callers, and who serves them at an address of their own.
"""
