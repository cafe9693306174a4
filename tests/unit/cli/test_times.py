"""Times as people write them."""

from __future__ import annotations

import pytest

from laneway.cli.times import duration_ms, moment_ms
from laneway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("15m", 900_000), ("1h30m", 5_400_000), (" 2 d ", 172_800_000), ("1.5H", 5_400_000), ("5ms", 5)],
)
def test_a_duration_has_units(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "90", "s", "1x", "-5s", "1h 30", "0s", "0.0001ms", "9" * 40 + "s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="15m"):
        duration_ms(text)


def test_a_moment_is_a_time_in_a_timezone_or_a_while_from_now() -> None:
    assert moment_ms("2027-01-31T09:00", "UTC", 0) == 1_801_386_000_000
    assert moment_ms("2027-01-31T09:00", "Europe/Vienna", 0) == 1_801_386_000_000 - 3_600_000
    assert moment_ms("2027-01-31T09:00+02:00", "UTC", 0) == 1_801_386_000_000 - 7_200_000
    assert moment_ms("90s", "UTC", 1_000) == 91_000


@pytest.mark.parametrize(("text", "zone"), [("tomorrow", "UTC"), ("2027-13-01", "UTC"), ("2027-01-31", "Mars/Base")])
def test_what_is_no_moment_is_refused(text: str, zone: str) -> None:
    with pytest.raises(UsageError):
        moment_ms(text, zone, 0)
