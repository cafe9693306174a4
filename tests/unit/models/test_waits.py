"""How long to wait: every way in which a provider says it, and everything that says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.models.waits import WAIT_MAX_MS, wait_ms

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
DATE_MS = 1_792_567_680_000


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": " 1.5 "}, 1_500),
        ({"retry-after": "0"}, 1),
        ({"retry-after": "30s"}, 30_000),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": DATE}, 30_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": DATE}, 1),
        ({"retry-after": "99999999"}, WAIT_MAX_MS),
        ({"x-ratelimit-reset-requests": "1m30s"}, 90_000),
        ({"x-ratelimit-reset-tokens": "20ms"}, 20),
        ({"x-ratelimit-reset": "12"}, 12_000),
        ({"x-ratelimit-reset": str(DATE_MS // 1000 + 5), "date": DATE}, 5_000),
        ({"x-ratelimit-reset": str(DATE_MS + 700), "date": DATE}, 700),
        ({"anthropic-ratelimit-tokens-reset": "2026-10-21T07:28:45Z", "date": DATE}, 45_000),
    ],
)
def test_headers_say_how_long(headers: dict[str, str], expected: int) -> None:
    assert wait_ms(headers, None) == expected


def test_the_limit_that_is_used_up_counts_and_not_the_others() -> None:
    headers = {
        "x-ratelimit-reset-requests": "2s",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-tokens": "10m",
        "x-ratelimit-remaining-tokens": "5000",
    }
    assert wait_ms(headers, None) == 2_000
    assert wait_ms({**headers, "x-ratelimit-remaining-tokens": "0"}, None) == 600_000


def test_words_say_more_than_a_limit_that_is_not_used_up() -> None:
    headers = {"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "100"}
    assert wait_ms(headers, {"message": "Please try again in 2s."}) == 2_000
    assert wait_ms(headers, {"message": "slow down"}) == 360_000


def test_a_date_is_compared_with_the_clock_where_the_answer_has_none() -> None:
    headers = {"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}
    assert wait_ms(headers, None, now_ms=DATE_MS) == 30_000
    assert wait_ms(headers, None) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "Rate limit reached. Please try again in 20s. Visit …"}}, 20_000),
        ({"error": {"message": "Please try again in 6m0s."}}, 360_000),
        ({"message": "Please retry after 12 seconds"}, 12_000),
        ({"message": "Please wait 250 ms"}, 250),
        ({"message": "try again in about 3 minutes"}, 180_000),
        ({"message": "retry in 1.5s"}, 1_500),
        ("too many requests, retry in 2 hours", 7_200_000),
        ({"error": {"details": [{"@type": "RetryInfo", "retryDelay": "34s"}]}}, 34_000),
        ({"error": {"resets_in_seconds": 77}}, 77_000),
    ],
)
def test_the_body_says_how_long(body: Any, expected: int) -> None:
    assert wait_ms({}, body) == expected


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "in a while"}, None),
        ({"retry-after": "Wed, 99 Oct 2026 07:28:00 GMT"}, None),
        ({"x-ratelimit-reset": "1792567680"}, None),
        ({}, {"message": "try again later"}),
        ({}, {"message": "you may try again in 5 apples"}),
        ({}, {"retry_after": True}),
        ({}, {"retry_after": None}),
        ({}, [[[[[[[[[[[{"retry_after": 5}]]]]]]]]]]]),
    ],
)
def test_what_says_nothing_is_no_wait(headers: dict[str, str], body: Any) -> None:
    assert wait_ms(headers, body) is None


@given(
    name=st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset", "anthropic-ratelimit-x-reset", "date"]),
    value=st.text(max_size=40) | st.floats().map(str) | st.integers().map(str),
    body=st.recursive(
        st.none() | st.text(max_size=40) | st.integers() | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["retry_after", "a"]), inner),
        max_leaves=5,
    ),
)
def test_whatever_a_provider_sends_the_wait_is_sane(name: str, value: str, body: Any) -> None:
    wait = wait_ms({name: value}, body, now_ms=DATE_MS)
    assert wait is None or 1 <= wait <= WAIT_MAX_MS
