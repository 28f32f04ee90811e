"""The lab of strange engines: does the gateway do right by an engine that is not like the one it was made with?

`strange.py` says what can be odd about an engine, `pages.py` what its metrics page says then. A cell (`cells.py`) is
one such engine under one load; `matrix.py` runs each cell three times, with nothing told, with the slots told, and with
queueing off, and compares the first run with the other two. `lab_cli.py` is `penstock simulate --lab`;
docs/strange-engines.md is the page for users.
"""
