"""Helpers independent of requests and endpoints.

`timers.py`: when must the scheduler be asked again? `decaying.py`: how much of something was there recently, and how
often does it happen? `bounded_map.py`: a memory that can't grow.
"""
