"""What holds for all tests: a machine that is busy with other things fails none of them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared_machine", deadline=None)  # an example's time says nothing there
settings.load_profile("shared_machine")
