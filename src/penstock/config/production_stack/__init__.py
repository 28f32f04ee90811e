"""Translates the flags of production-stack's router (`vllm-router`) into settings.

`flags.py` is the table of all flags. `command_line.py` parses flags, `files.py` the files they name, `document.py`
makes settings of them, `text.py` writes these as YAML. Serving and printing both use that YAML, so the printed settings
are the ones that would run.
"""
