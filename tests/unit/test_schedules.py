"""When schedules fire: cron in local time, intervals, single times, and what was missed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from laneway.errors import ConfigError
from laneway.mail import Schedule
from laneway.runtime.schedules import CRON_MAX, MISSED_MAX, check_cron, check_timezone, missed, next_firing
from tests.property.worlds import effort

BERLIN, LORD_HOWE, APIA = "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"


def cron(expression: str, timezone: str = "UTC", next_ms: int = 0) -> Schedule:
    return Schedule(
        id="s",
        session_key="k",
        text="go",
        cron=expression,
        at_ms=None,
        every_ms=None,
        missed="skip",
        next_ms=next_ms,
        timezone=timezone,
    )


def every(every_ms: int, next_ms: int) -> Schedule:
    return Schedule(
        id="s", session_key="k", text="go", cron=None, at_ms=None, every_ms=every_ms, missed="skip", next_ms=next_ms
    )


def once(at_ms: int) -> Schedule:
    return Schedule(
        id="s", session_key="k", text="go", cron=None, at_ms=at_ms, every_ms=None, missed="run", next_ms=at_ms
    )


def wall(text: str, timezone: str = "UTC", fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone), fold=fold).timestamp()) * 1000


def firings(schedule: Schedule, start_ms: int, count: int) -> list[str]:
    """The next local times, with their offset in hours and minutes."""
    shown = []
    at: int | None = start_ms
    for _ in range(count):
        assert at is not None
        at = next_firing(schedule, at)
        assert at is not None
        shown.append(datetime.fromtimestamp(at / 1000, ZoneInfo(schedule.timezone)).strftime("%d %H:%M %z"))
    return shown


# ---- one time and intervals -----------------------------------------------------------------------------------


def test_a_single_time_fires_once() -> None:
    assert next_firing(once(500), 499) == 500
    assert next_firing(once(500), 500) is None
    assert missed(once(500), 499) == (0, 500)
    assert missed(once(500), 500) == (1, None)
    assert missed(once(500), 10**15) == (1, None)


def test_an_interval_stays_on_its_beat_however_late_somebody_looks() -> None:
    schedule = every(1000, 12_345)
    assert next_firing(schedule, 0) == 12_345
    assert next_firing(schedule, 12_345) == 13_345
    assert next_firing(schedule, 99_999) == 100_345
    assert missed(schedule, 12_344) == (0, 12_345)
    assert missed(schedule, 14_344) == (2, 14_345)


@given(step=st.integers(1, 10**9), first=st.integers(0, 10**13), after=st.integers(0, 10**14))
def test_the_next_beat_is_the_first_one_after(step: int, first: int, after: int) -> None:
    found = next_firing(every(step, first), after)
    assert found is not None
    assert found > after
    assert (found - first) % step == 0
    assert found - step <= after or found == first


@given(step=st.integers(1, 1000), first=st.integers(0, 1000), now=st.integers(0, 50_000))
def test_missed_beats_are_counted_up_to_a_bound(step: int, first: int, now: int) -> None:
    due = len(range(first, now + 1, step))
    assert missed(every(step, first), now).firings == min(due, MISSED_MAX)


# ---- cron -----------------------------------------------------------------------------------------------------


def test_five_fields_fire_on_the_minute_strictly_after() -> None:
    schedule = cron("*/15 * * * *")
    at = wall("2026-01-01T10:00")
    assert next_firing(schedule, at - 1) == at
    assert next_firing(schedule, at) == at + 900_000
    assert next_firing(schedule, at + 1) == at + 900_000


def test_six_fields_have_the_seconds_in_front() -> None:
    at = wall("2026-01-01T10:00")
    assert next_firing(cron("*/10 * * * * *"), at) == at + 10_000
    assert next_firing(cron("30 0 12 * * *"), at) == wall("2026-01-01T12:00:30")


def test_names_aliases_and_capitals_are_understood() -> None:
    friday = wall("2026-01-02T10:00")
    assert next_firing(cron("0 9 * * MON-FRI"), friday) == wall("2026-01-05T09:00")
    assert next_firing(cron("@daily"), friday) == wall("2026-01-03T00:00")
    assert next_firing(cron("0 0 L * *"), friday) == wall("2026-01-31T00:00")
    assert next_firing(cron("0 0 * * 1#2"), friday) == wall("2026-01-12T00:00")
    assert next_firing(cron("  0   0 1 jan\t* "), friday) == wall("2027-01-01T00:00")


def test_either_day_is_enough_when_both_are_restricted() -> None:
    assert firings(cron("0 0 13 * 5"), wall("2026-01-01T00:00"), 4) == [
        "02 00:00 +0000",
        "09 00:00 +0000",
        "13 00:00 +0000",
        "16 00:00 +0000",
    ]


def test_a_timezone_moves_the_hours() -> None:
    assert next_firing(cron("0 9 * * *", "Asia/Kolkata"), wall("2026-01-01T00:00")) == wall("2026-01-01T03:30")


def test_a_skipped_time_fires_at_the_change_of_the_clock() -> None:
    assert firings(cron("30 2 * * *", BERLIN), wall("2026-03-28T12:00", BERLIN), 2) == [
        "29 03:00 +0200",
        "30 02:30 +0200",
    ]


def test_many_skipped_times_fire_once() -> None:
    assert firings(cron("* 2 * * *", BERLIN), wall("2026-03-28T02:58", BERLIN), 3) == [
        "28 02:59 +0100",
        "29 03:00 +0200",
        "30 02:00 +0200",
    ]


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    assert firings(cron("30 2 * * *", BERLIN), wall("2026-10-24T12:00", BERLIN), 2) == [
        "25 02:30 +0200",
        "26 02:30 +0100",
    ]
    second = wall("2026-10-25T02:10", BERLIN, fold=1)
    assert firings(cron("30 2 * * *", BERLIN), second, 1) == ["26 02:30 +0100"]


def test_every_hour_means_real_hours() -> None:
    schedule = cron("0 * * * *", BERLIN)
    assert firings(schedule, wall("2026-03-29T00:30", BERLIN), 3) == [
        "29 01:00 +0100",
        "29 03:00 +0200",
        "29 04:00 +0200",
    ]
    assert firings(schedule, wall("2026-10-25T01:30", BERLIN), 3) == [
        "25 02:00 +0200",
        "25 02:00 +0100",
        "25 03:00 +0100",
    ]


def test_a_day_that_never_was_fires_when_the_next_begins() -> None:
    """Samoa had no 30 December 2011."""
    assert firings(cron("0 12 * * *", APIA), wall("2011-12-28T13:00", APIA), 3) == [
        "29 12:00 -1000",
        "31 00:00 +1400",
        "31 12:00 +1400",
    ]


def test_missed_firings_of_cron_are_counted_up_to_a_bound() -> None:
    start = wall("2026-01-01T00:00")
    schedule = cron("0 * * * *", next_ms=start)
    assert missed(schedule, start - 1) == (0, start)
    assert missed(schedule, start) == (1, start + 3_600_000)
    assert missed(schedule, start + 2 * 3_600_000 + 1) == (3, start + 3 * 3_600_000)
    assert missed(cron("* * * * *", next_ms=start), start + 10**10).firings == MISSED_MAX


def test_cron_ends_where_dates_end() -> None:
    assert next_firing(cron("* * * * *"), 10**17) is None
    assert next_firing(cron("0 0 29 2 *", APIA), 249_999_999_999_000) is not None


def test_cron_begins_with_the_epoch() -> None:
    assert next_firing(cron("* * * * *"), -1) == 0
    assert next_firing(cron("* * * * *"), -(10**15)) == 0


# ---- against a clock that is read minute by minute -------------------------------------------------------------

CHANGES = [
    (BERLIN, "2026-03-28T20:00"),
    (BERLIN, "2026-10-24T20:00"),
    (LORD_HOWE, "2026-04-04T05:00"),
    (LORD_HOWE, "2026-10-03T05:00"),
    ("America/New_York", "2026-11-01T00:00"),
    ("America/New_York", "2026-03-08T00:00"),
    ("Africa/Casablanca", "2026-02-14T20:00"),
    ("UTC", "2026-05-01T00:00"),
]
HOURS_LONG = 14


def field(most: int) -> st.SearchStrategy[str]:
    numbers = st.lists(st.integers(0, most), min_size=1, max_size=3, unique=True).map(lambda n: ",".join(map(str, n)))
    return st.one_of(st.just("*"), numbers, st.integers(2, most).map(lambda step: f"*/{step}"))


def values(text: str, most: int) -> set[int]:
    if text.startswith("*"):
        return set(range(0, most + 1, int(text[2:] or 1)))
    return set(map(int, text.split(",")))


def naive_firings(minute: str, hour: str, timezone: str, start_s: int) -> Iterator[int]:
    """Every minute is looked at: the first instant of each local time that matches, or all of them for every hour."""
    instants = range(start_s, start_s + HOURS_LONG * 3600, 60)
    local = [datetime.fromtimestamp(at, ZoneInfo(timezone)).replace(tzinfo=UTC) for at in instants]
    minutes, hours = values(minute, 59), values(hour, 23)

    def matches(seconds: int) -> bool:
        at = datetime.fromtimestamp(seconds, UTC)
        return at.minute in minutes and at.hour in hours

    reached = int(local[0].timestamp()) - 60
    for instant, at in zip(instants, local, strict=True):
        here = int(at.timestamp())
        if hours == set(range(24)):
            if matches(here):
                yield instant
        elif here > reached and any(matches(seconds) for seconds in range(reached + 60, here + 1, 60)):
            yield instant
        reached = max(reached, here)


@pytest.mark.slow
@given(minute=field(59), hour=field(23), place=st.sampled_from(CHANGES), offset=st.integers(-30, 30))
def test_cron_equals_a_clock_that_is_read_every_minute(
    minute: str, hour: str, place: tuple[str, str], offset: int
) -> None:
    timezone, around = place
    start_s = wall(around) // 1000 + offset * 60
    local = datetime.fromtimestamp(start_s, ZoneInfo(timezone))
    assume(not local.fold)  # the naive reader does not know what it has seen before it began
    expected = [at * 1000 for at in naive_firings(minute, hour, timezone, start_s)]
    schedule = cron(f"{minute} {hour} * * *", timezone)
    found = []
    at = next_firing(schedule, start_s * 1000 - 1)
    while at is not None and at < (start_s + HOURS_LONG * 3600) * 1000:
        found.append(at)
        at = next_firing(schedule, at)
    assert found == expected


@effort(60)
@given(minute=field(59), hour=field(23), place=st.sampled_from(CHANGES), after=st.integers(0, HOURS_LONG * 3600_000))
def test_cron_gives_the_same_firing_from_wherever_one_looks(
    minute: str, hour: str, place: tuple[str, str], after: int
) -> None:
    schedule = cron(f"{minute} {hour} * * *", place[0])
    start = wall(place[1])
    found = next_firing(schedule, start + after)
    assert found is not None
    assert found > start + after
    assert next_firing(schedule, found - 1) == found
    assert next_firing(schedule, (start + after + found) // 2) == found


# ---- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (None, "is text"),
        (5, "is text"),
        ("", "5 or 6 fields, not 0"),
        ("* * * *", "5 or 6 fields, not 4"),
        ("0 0 1 1 * 0 2030", "5 or 6 fields, not 7"),
        ("60 * * * *", "from 0 to 59 in its field minute, not 60"),
        ("* 24 * * *", "from 0 to 23 in its field hour, not 24"),
        ("* * 0 * *", "from 1 to 31 in its field day of month, not 0"),
        ("60 0 0 * * *", "field second, not 60"),
        ("* * * foo *", "field month, not 'foo'"),
        ("R * * * *", "not 'r'"),
        ("H * * * *", "not 'h'"),
        ("*/90 * * * *", "steps from 1 to 59 in its field minute, not 90.*every_ms"),
        ("*/0 * * * *", "steps from 1 to 59"),
        ("0 0 30 2 *", "comes true some day"),
        ("--- * * * *", "can be read by cron"),
        ("1,,2 * * * *", "can be read by cron"),
        ("@every 5m", "@hourly, @daily"),
        ("@reboot", "@hourly, @daily"),
        ("٣ * * * *", "plain characters"),
        ("* " * CRON_MAX, "at most 200"),
    ],
)
def test_garbage_is_refused_with_what_is_allowed(expression: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_cron(expression)
    assert caught.value.setting == "cron"
    assert caught.value.hint


@given(
    expression=st.one_of(
        st.text(max_size=30),
        st.text("0123456789*/-,#lwLW? @abcfjmnstu", max_size=40),
        st.lists(st.text("0123456789*/-,#lw?", min_size=1, max_size=6), min_size=5, max_size=6).map(" ".join),
    )
)
def test_an_expression_is_refused_or_it_fires(expression: str) -> None:
    try:
        folded = check_cron(expression)
    except ConfigError:
        return
    assert check_cron(folded) == folded
    after = wall("2026-01-01T00:00")
    found = next_firing(cron(folded), after)
    assert found is not None
    assert found > after


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("berlin", "did you mean 'Europe/Berlin'"),
        ("new york", "did you mean 'America/New_York'"),
        ("America", "there is no timezone"),
        ("../../etc/passwd", "there is no timezone"),
        ("\0", "there is no timezone"),
        ("", "IANA"),
        (5, "there is no timezone"),
    ],
)
def test_an_unknown_timezone_is_refused_with_a_guess(name: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_timezone(name)
    assert caught.value.setting == "timezone"


def test_a_known_timezone_is_itself() -> None:
    assert check_timezone("Europe/Berlin") == "Europe/Berlin"
