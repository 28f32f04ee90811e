"""Does anything that comes from outside break what reads it? `make fuzz`, and a small run of it with every test run.

`targets.py` has one function a reader: bytes in, an AssertionError or any other exception out where something is wrong.
`corpus/` keeps, for each of them, the inputs that are worth starting from, and every one that ever broke it.
"""
