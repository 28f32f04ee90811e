"""What does somebody see who watches the gateway in a terminal, and which keys are there?

`live.py` draws once a second and at each key; `wishes.py` is what the person who watches wants to see, and what of the
gateway's state that leaves; `keyboard.py` hears keys, and leaves the terminal as it was. The tables are `cli/views.py`.
"""
