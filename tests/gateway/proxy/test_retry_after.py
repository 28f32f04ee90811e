"""What an engine's Retry-After comes to, in seconds."""

from __future__ import annotations

import pytest

from penstock.gateway.proxy.headers import retry_after_s

NOON = 1_764_072_000.0  # Tue, 25 Nov 2025 12:00:00 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], 0.0),
        ([(b"Retry-After", b"4")], 4.0),
        ([(b"retry-after", b" 1.5 ")], 1.5),
        ([(b"Retry-After", b"0")], 0.0),
        ([(b"Retry-After", b"-5")], 0.0),
        ([(b"Retry-After", b"soon")], 0.0),
        ([(b"Retry-After", b"nan")], 0.0),
        ([(b"Retry-After", b"1e9")], 0.0),
        ([(b"Retry-After", b"")], 0.0),
        ([(b"Retry-After", b"\xff")], 0.0),
        ([(b"Retry-After", b"Tue, 25 Nov 2025 12:00:07 GMT")], 7.0),
        ([(b"Retry-After", b"Tue, 25 Nov 2025 11:59:00 GMT")], 0.0),
        # An engine whose clock is an hour ahead.
        ([(b"Date", b"Tue, 25 Nov 2025 13:00:00 GMT"), (b"Retry-After", b"Tue, 25 Nov 2025 13:00:07 GMT")], 7.0),
        ([(b"Retry-After", b"Tue, 25 Nov 99999 12:00:00 GMT")], 0.0),
        ([(b"retry-after-ms", b"250"), (b"retry-after", b"1")], 0.25),
        ([(b"retry-after-ms", b"x"), (b"retry-after", b"3")], 3.0),
    ],
)
def test_seconds_milliseconds_and_dates_are_understood_and_nothing_else(
    headers: list[tuple[bytes, bytes]], seconds: float
) -> None:
    assert retry_after_s(headers, NOON) == pytest.approx(seconds)
