"""What do several rooms need that knows nothing of requests or endpoints?

`timers.py`: when must the scheduler be asked again. `decaying_rate.py`: how often does something happen, recently.
"""
