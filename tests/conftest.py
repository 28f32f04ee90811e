"""What holds for all tests: a machine that is busy with other things fails none, and the longest begin first."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("shared_machine", deadline=None)  # an example's time says nothing there
settings.load_profile("shared_machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of long scenarios first, so that no core waits for one of them at the end."""
    items.sort(key=lambda item: not item.path.name.startswith("test_scenarios"))
