"""Which settings are there? One file per section of the YAML; `section.py` is what they have in common."""
