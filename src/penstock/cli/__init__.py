"""The commands `penstock …`, one file per command.

`main.py` holds signals back, `commands.py` imports only the chosen command, so that `--help` is quick; `hints.py`
answers mistakes with the right line. `running.py` is `serve`; `steering/` has the verbs for endpoints, tenants and the
leader. `admin_client.py` and `batch_client.py` call a running gateway, `top/` draws its state in a terminal,
`diagnosis.py` examines endpoints for `doctor.py`.
"""
