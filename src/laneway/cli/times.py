"""Durations and moments as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from laneway.errors import UsageError

__all__ = ("duration_ms", "moment_ms")

UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d)")


def duration_ms(text: str) -> int:
    """`90s`, `15m`, `1h30m` in milliseconds."""
    rest = text.strip().lower()
    total = 0.0
    while rest:
        found = DURATION.match(rest)
        if found is None:
            raise UsageError(f"{text!r} is no duration", hint="for example 90s, 15m, 1h30m, 2d")
        total += float(found[1]) * UNITS[found[2]]
        rest = rest[found.end() :].lstrip()
    if total < 1:
        raise UsageError(f"{text!r} is no duration", hint="for example 90s, 15m, 1h30m, 2d")
    return round(total)


def moment_ms(text: str, timezone: str, now_ms: int) -> int:
    """A moment on the wall clock: `2027-01-31T09:00` in a timezone, or a duration from now on."""
    if DURATION.match(text.strip().lower()):
        return now_ms + duration_ms(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="for example 2027-01-31T09:00, or 90s from now") from None
    if moment.tzinfo is None:
        try:
            zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
        except (ValueError, OSError, KeyError):
            raise UsageError(f"there is no timezone {timezone!r}", hint="for example Europe/Vienna") from None
        moment = moment.replace(tzinfo=zone)
    return round(moment.timestamp() * 1000)
