"""An engine that is recognised can also be named in the settings."""

from __future__ import annotations

from typing import get_args

from penstock.config.values import EngineName
from penstock.engines.recognise import ENGINES


def test_every_engine_has_a_name_in_the_settings() -> None:
    assert set(get_args(EngineName)) == {"auto", *ENGINES}
