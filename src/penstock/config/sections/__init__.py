"""The settings, one file per section of the YAML; `section.py` is their base class."""
