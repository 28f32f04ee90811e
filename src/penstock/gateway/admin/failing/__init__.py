"""What goes wrong, whose is it, and what is to be done about it?

`lately.py` sums up the last minute of what `gateway/telemetry` counts as failures, and has its words; `incidents.py`
makes events of it that stay few; `advice.py` says what helps. `strangers.py` finds what another gateway does to our
engines.
"""
