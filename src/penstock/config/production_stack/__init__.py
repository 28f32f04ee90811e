"""What do the flags of production-stack's router (`vllm-router`) say, in settings of ours?

`flags.py` is the table: every flag, what becomes of it, and why. `command_line.py` reads words into flags, `files.py`
the files that flags name, `document.py` makes settings of them, `text.py` writes these as YAML. Both ways of use, to
serve and to print for a migration, go through that YAML, so what is printed is what would run.
"""
