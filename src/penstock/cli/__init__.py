"""`penstock …`: which commands are there? One file per command.

`main.py` is the door; it imports a command only when that command is asked for, so that `--help` is quick.
`running.py` runs a gateway, and `following.py` a file that it follows.
`steering/` has the verbs for endpoints and tenants. `admin_client.py` and `batch_client.py` reach a running gateway,
`views.py` draws its state in a terminal and `top/` goes on doing so, `diagnosis.py` examines endpoints for `doctor.py`,
`completion.py` prints the scripts by which shells complete all of it.
"""
