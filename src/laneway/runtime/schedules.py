"""When a schedule fires: pure arithmetic on wall times in whole milliseconds.

Three kinds. `at_ms` fires once. `every_ms` fires at `next_ms` and then at whole multiples after it, so that it never
drifts, however late somebody looks. `cron` fires when the local clock of its timezone matches.

Cron expressions have five fields (minute, hour, day of month, month, day of week), or six with the seconds in front,
or are one of `@hourly`, `@daily` and so on. When both days are restricted, either is enough, as cron always had it.

Where clocks change. A job that names its hours fires once for each local time: a time that the clock skips fires at
the moment of the change, a time that comes twice fires the first time. A job for every hour follows the real hours:
it skips what is skipped, and fires both times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from laneway.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from laneway.mail import Schedule

__all__ = ("MISSED_MAX", "Missed", "check_cron", "check_timezone", "missed", "next_firing")

MISSED_MAX: Final = 100
"""Missed firings are counted up to here; whoever was away that long needs no exact number."""

CRON_MAX: Final = 200
_LATEST_S: Final = 250_000_000_000  # the year 9892: dates end with 9999, and croniter looks fifty years ahead
_CHECKED_FROM_S: Final = 1_600_000_000

_WORDS: Final = re.compile("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat|l|w")
_ALIASES: Final = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_FIELDS: Final = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 7),
)
_HINT: Final = (
    "minute hour day month weekday, such as '0 9 * * mon-fri' or '*/15 * * * *'; with six, seconds come first"
)


class Missed(NamedTuple):
    """How many firings are due or overdue (counted up to `MISSED_MAX`), and when the next one after them is."""

    firings: int
    next_ms: int | None


def next_firing(schedule: Schedule, after_ms: int) -> int | None:
    """When a schedule fires next, strictly after a time; None when it never will."""
    if schedule.at_ms is not None:
        return schedule.at_ms if schedule.at_ms > after_ms else None
    if schedule.every_ms is not None:
        first, step = schedule.next_ms, schedule.every_ms
        return first if first > after_ms else first + ((after_ms - first) // step + 1) * step
    assert schedule.cron is not None
    after_s = max(after_ms // 1000, -1)
    if after_s >= _LATEST_S:
        return None
    found = _Cron.of(schedule.cron, schedule.timezone).after(after_s)
    return None if found is None else found * 1000


def missed(schedule: Schedule, now_ms: int) -> Missed:
    """What a schedule owes at `now_ms`: its firings from `next_ms` to now, and the first one after now."""
    due = schedule.next_ms
    if due > now_ms:
        return Missed(0, due)
    following = next_firing(schedule, now_ms)
    if schedule.at_ms is not None:
        return Missed(1, following)
    if schedule.every_ms is not None:
        return Missed(min((now_ms - due) // schedule.every_ms + 1, MISSED_MAX), following)
    count = 0
    at: int | None = due
    while at is not None and at <= now_ms and count < MISSED_MAX:
        count += 1
        at = next_firing(schedule, at)
    return Missed(count, following)


# ---- validation -----------------------------------------------------------------------------------------------


def check_cron(expression: object) -> str:
    """A cron expression with its white space folded; anything that is none, or that never fires, is a `ConfigError`."""
    if not isinstance(expression, str):
        raise _bad(expression, "is text", _HINT)
    if len(expression) > CRON_MAX or not expression.isascii():
        raise _bad(expression[:40], f"has at most {CRON_MAX} plain characters", _HINT)
    folded = " ".join(expression.lower().split())
    if folded.startswith("@"):
        if folded not in _ALIASES:
            raise _bad(expression, "has a name that is known", ", ".join(_ALIASES))
    else:
        _check_fields(expression, folded.split())
    _check_fires(expression, folded)
    return folded


def _check_fields(expression: str, fields: list[str]) -> None:
    if len(fields) not in {5, 6}:
        raise _bad(expression, f"has 5 or 6 fields, not {len(fields)}", _HINT)
    for text, (name, least, most) in zip(fields, _FIELDS[-len(fields) :], strict=True):
        for word in re.findall("[a-z]+", text):
            if not _WORDS.fullmatch(word):
                raise _bad(expression, f"has numbers or names in its field {name}, not {word!r}", _HINT)
        for step in re.findall("/([0-9]+)", text):
            if not 1 <= int(step) <= most:
                raise _bad(
                    expression,
                    f"has steps from 1 to {most} in its field {name}, not {step}",
                    "a longer step would begin anew each time; every_ms has no such end",
                )
        for number in re.findall("(?<![/#0-9])[0-9]+", text):
            if not least <= int(number) <= most:
                raise _bad(expression, f"has numbers from {least} to {most} in its field {name}, not {number}", _HINT)


def _check_fires(expression: str, folded: str) -> None:
    from croniter import CroniterError  # few processes have schedules

    try:
        fires = _Cron(folded, _zone("UTC")).next_local(_CHECKED_FROM_S)
    except (CroniterError, ValueError, KeyError, TypeError) as error:
        raise _bad(expression, "can be read by cron", _HINT) from error
    if fires is None:
        raise _bad(expression, "comes true some day", "no such date exists in the next fifty years")


def _bad(expression: object, rule: str, hint: str) -> ConfigError:
    return ConfigError(f"a cron expression {rule}: {expression!r}", setting="cron", value=expression, hint=hint)


def check_timezone(name: object) -> str:
    """The name of a timezone that this machine knows."""
    _zone(name)
    assert isinstance(name, str)
    return name


def _zone(name: object) -> ZoneInfo:
    """A timezone by its IANA name; an unknown one is a `ConfigError` with a guess."""
    from zoneinfo import ZoneInfo

    try:
        if isinstance(name, str) and name:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; a path; a folder of zones
        pass
    raise ConfigError(f"there is no timezone {str(name)[:40]!r}", setting="timezone", value=name, hint=_zone_hint(name))


def _zone_hint(name: object) -> str:
    from zoneinfo import available_timezones

    zones = sorted(available_timezones())
    known = {zone.rpartition("/")[2].casefold(): zone for zone in zones} | {zone.casefold(): zone for zone in zones}
    near = get_close_matches(str(name)[:40].casefold().replace(" ", "_"), known, n=1, cutoff=0.7)
    return f"did you mean {known[near[0]]!r}?" if near else "IANA names, such as 'Europe/Berlin' or 'UTC'"


# ---- cron in local time ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cron:
    """An expression in a timezone. Croniter only ever sees local seconds as if they were UTC: it has no timezones."""

    expression: str
    zone: ZoneInfo

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(expression: str, timezone: str) -> _Cron:
        """An expression that may come from anywhere, checked."""
        return _Cron(check_cron(expression), _zone(timezone))

    def next_local(self, local_s: int) -> int | None:
        """The next local second that matches."""
        from croniter import CroniterBadDateError, croniter

        try:
            return int(croniter(self.expression, float(local_s), second_at_beginning=True).get_next(float))
        except CroniterBadDateError:
            return None

    def after(self, after_s: int) -> int | None:
        """The next instant that fires, strictly after one."""
        return self._every_hour(after_s) if self._is_hourly() else self._named_hours(after_s)

    def _is_hourly(self) -> bool:
        from croniter import croniter

        return croniter.expand(self.expression, second_at_beginning=True)[0][1] == ["*"]

    def _named_hours(self, after_s: int) -> int | None:
        local = self._local(after_s)
        start = _seconds(local)
        if local.fold:  # the second time around: all of that has fired already
            before, now = _offset(local.replace(fold=0)), _offset(local)
            start = self._change(after_s - (before - now), after_s) + before - 1
        found = self.next_local(start)
        if found is None:
            return None
        early, late = self._instants(found)
        # A time that the clock skips has its later reading before its earlier one.
        return early if early <= late else self._change(late, early)

    def _every_hour(self, after_s: int) -> int | None:
        local = self._local(after_s)
        found = self.next_local(_seconds(local))
        if found is None:
            return None
        early, late = self._instants(found)
        if early > late:  # skipped by the clock: what matches after the change
            change = self._change(late, early)
            return self._every_hour_from(change)
        at = early if early > after_s else late
        first, second = _offset(local.replace(fold=0)), _offset(local.replace(fold=1))
        if second < first and not local.fold:  # this time comes again, and so may others before `found`
            change = self._change(after_s, after_s + first - second)
            again = self.next_local(change + second - 1)
            if again is not None and again < change + first:
                at = min(at, again - second)
        return at

    def _every_hour_from(self, change: int) -> int | None:
        """The first instant that fires at a change of the clock or after it."""
        found = self.next_local(_seconds(self._local(change)) - 1)
        return None if found is None else self._instants(found)[0]

    def _local(self, instant_s: int) -> datetime:
        return datetime.fromtimestamp(instant_s, self.zone)

    def _instants(self, local_s: int) -> tuple[int, int]:
        """The two readings of a local time; they are equal except where clocks change."""
        local = datetime.fromtimestamp(local_s, UTC).replace(tzinfo=self.zone)
        return local_s - _offset(local), local_s - _offset(local.replace(fold=1))

    def _change(self, low: int, high: int) -> int:
        """The first second after `low`, at most `high`, that has another offset than `low`."""
        offset = _offset(self._local(low))
        while high - low > 1:
            middle = (low + high) // 2
            if _offset(self._local(middle)) == offset:
                low = middle
            else:
                high = middle
        return high


def _offset(local: datetime) -> int:
    delta = local.utcoffset()
    assert delta is not None
    return delta.days * 86_400 + delta.seconds


def _seconds(local: datetime) -> int:
    """A local time as if it were UTC."""
    return int(local.replace(tzinfo=UTC).timestamp())
