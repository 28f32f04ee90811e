"""`penstock …`: which commands are there? One file per command.

`main.py` is the door; it imports a command when that is asked for, so that `--help` is quick. `admin_client.py` and
`batch_client.py` reach a running gateway, `views.py` draws its state in a terminal, `diagnosis.py` is what `doctor.py`
asks.
"""
