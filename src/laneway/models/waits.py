"""How long a provider says to wait, read from the headers and the body of its refusal.

Absolute times are compared with the `Date` of the same answer where it has one: the provider's clock and ours differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

__all__ = ("WAIT_MAX_MS", "wait_ms")

WAIT_MAX_MS: Final = 7 * 86_400_000
BODY_CHARS_MAX: Final = 20_000
EPOCH_S: Final = 1_000_000_000  # a number of seconds beyond this is a date, not a duration
EPOCH_MS: Final = 1_000_000_000_000

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|s|m|h|d)")
HINT: Final = re.compile(
    r"(?:try again|retry|retrying|wait|available again|resets?)(?: (?:in|after|for|at least))* "
    r"(?:about |~)?(\d{1,9}(?:\.\d{1,9})?) ?(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d)"
    r"((?:\d{1,9}(?:\.\d{1,9})?(?:ms|s|m|h))*)(?![a-z0-9])",
    re.IGNORECASE,
)
RESETS: Final = re.compile(r"^(?:x-ratelimit|ratelimit|anthropic-ratelimit)(?:-(?P<what>.+))?-reset(?:-(?P<of>.+))?$")
DELAY_KEYS: Final = frozenset(
    {"retryDelay", "retry_delay", "retry_after", "retryAfter", "resets_in_seconds", "resets_at", "reset_at"}
)
DEPTH_MAX: Final = 8


def wait_ms(headers: Mapping[str, str], body: object, *, now_ms: int | None = None) -> int | None:
    """Milliseconds to wait, at least 1 and at most 7 days; None when the refusal does not say.

    `headers` have lower-case names. `now_ms` is the wall clock, used where the answer has no `Date`.
    """
    now = _date_ms(headers.get("date", "")) or now_ms
    for found in _candidates(headers, body, now):
        if found is not None and math.isfinite(found) and found >= 0:
            return min(max(1, math.ceil(found)), WAIT_MAX_MS)
    return None


def _candidates(headers: Mapping[str, str], body: object, now: int | None) -> Iterator[float | None]:
    """From the surest to the vaguest."""
    yield _number(headers.get("retry-after-ms", ""))
    yield _moment(headers.get("retry-after", ""), now)
    used_up, others = _resets(headers, now)
    yield max(used_up, default=None)
    yield from _told(body, now)
    yield max(others, default=None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _date_ms(text: str) -> int | None:
    """A date of HTTP or of RFC 3339 as milliseconds since 1970."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        except (ValueError, TypeError, IndexError):
            continue
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        try:
            return int(aware.timestamp() * 1000)
        except (OverflowError, ValueError):
            return None
    return None


def _moment(text: str, now: int | None) -> float | None:
    """Milliseconds until what a header says: seconds, `1m30s`, a date, or a time since 1970."""
    text = text.strip()
    if (number := _number(text)) is not None:
        if number >= EPOCH_MS:
            return None if now is None else max(0.0, number - now)
        if number >= EPOCH_S:
            return None if now is None else max(0.0, number * 1000 - now)
        return number * 1000
    if (duration := _duration(text)) is not None:
        return duration
    moment = _date_ms(text)
    return None if moment is None or now is None else max(0.0, float(moment - now))


def _duration(text: str) -> float | None:
    """Milliseconds of `20ms`, `1.5s`, `6m0s`."""
    parts = DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return float(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def _resets(headers: Mapping[str, str], now: int | None) -> tuple[list[float], list[float]]:
    """How long until each limit is whole again: those that are used up, and those that do not say so."""
    used_up: list[float] = []
    others: list[float] = []
    for header, value in headers.items():
        if RESETS.match(header) is None or (wait := _moment(value, now)) is None:
            continue
        remaining = _number(headers.get(header.replace("-reset", "-remaining"), ""))
        (used_up if remaining is not None and remaining <= 0 else others).append(wait)
    return used_up, others


def _told(body: object, now: int | None) -> Iterator[float | None]:
    """What the body says: a field of its own, or a sentence such as `Please try again in 20s.`"""
    fields = [("", body), *_fields(body)]
    for key, value in fields:
        if key in DELAY_KEYS and isinstance(value, str | int | float) and not isinstance(value, bool):
            yield _moment(str(value), now)
    for _, value in fields:
        if isinstance(value, str) and (found := HINT.search(value[:BODY_CHARS_MAX])) is not None:
            number, unit, rest = found.groups()
            short = "ms" if unit.lower().startswith(("ms", "milli")) else unit[0].lower()
            yield float(number) * UNITS_MS[short] + (_duration(rest.lower()) or 0.0)


def _fields(body: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every field of a JSON value, outermost first; what is nested absurdly deep is not looked at."""
    if depth > DEPTH_MAX:
        return
    if isinstance(body, Mapping):
        yield from body.items()
    for value in body.values() if isinstance(body, Mapping) else body if isinstance(body, list) else ():
        yield from _fields(value, depth + 1)
