"""The lab of strange engines: does the gateway do right by an engine that is not like the one it was made with?

A cell (`cells.py`) is one engine that is odd in one way (`Strange`), under one load; `matrix.py` runs each cell three
times, with nothing told, with the slots told, and with queueing off, and compares the first run with the other two.
`pages.py` are metrics pages that lie; `lab_cli.py` is `python -m bench lab`. Its page is bench/strange-engines.md.
"""
