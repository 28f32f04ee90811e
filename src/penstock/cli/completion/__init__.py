"""What makes a shell complete `penstock`? `command.py` prints it.

The scripts beside it are made by shtab from the parser of all commands (`scripts/completion`), and kept: a shell that
starts runs one command and imports no library, and who installs Penstock needs none.
"""
