"""What the live page draws beside the snapshot: how does each tenant do, and which cause is shown?

Read `steady.py`, then `drawn.py`.
"""
