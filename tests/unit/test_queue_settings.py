"""Which queue settings are in force, where each came from, and how they are kept."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError
from laneway.kernel.settings import LEVELS, merge, options_from_json, options_to_json, resolve
from laneway.mail import CAP_MAX, Drop, Mode, QueueOptions, QueueSettings
from laneway.records import DURATION_MAX_MS
from tests.property.worlds import effort

OPTIONS = st.builds(
    QueueOptions,
    mode=st.one_of(st.none(), st.sampled_from(list(Mode))),
    debounce_ms=st.one_of(st.none(), st.integers(0, DURATION_MAX_MS)),
    cap=st.one_of(st.none(), st.integers(1, CAP_MAX)),
    drop=st.one_of(st.none(), st.sampled_from(list(Drop))),
)
NAMES = ("mode", "debounce_ms", "cap", "drop")


def test_without_any_level_the_defaults_are_in_force() -> None:
    settings = resolve([], max_wait_ms=None)
    assert (settings.mode, settings.debounce_ms, settings.max_wait_ms) == (Mode.COLLECT, 1000, 10_000)
    assert (settings.cap, settings.drop) == (20, Drop.SUMMARIZE)
    assert settings.origins == dict.fromkeys((*NAMES, "max_wait_ms"), "default")


def test_each_option_has_a_precedence_of_its_own() -> None:
    settings = resolve(
        [
            ("inline", QueueOptions(cap=1)),
            ("session", QueueOptions(cap=2, drop=Drop.NEW)),
            ("channel", QueueOptions(cap=3, drop=Drop.OLD, debounce_ms=30)),
            ("workspace", QueueOptions(mode=Mode.STEER, debounce_ms=40)),
            ("global", QueueOptions(mode=Mode.REJECT, debounce_ms=50, cap=5)),
        ],
        max_wait_ms=None,
    )
    assert (settings.cap, settings.drop, settings.debounce_ms, settings.mode) == (1, Drop.NEW, 30, Mode.STEER)
    assert settings.max_wait_ms == 300
    assert settings.origins == {
        "cap": "inline",
        "drop": "session",
        "debounce_ms": "channel",
        "max_wait_ms": "channel",
        "mode": "workspace",
    }


def test_a_level_has_its_rank_wherever_it_is_listed() -> None:
    levels = [("inline", QueueOptions(cap=1)), ("session", QueueOptions(cap=2)), ("global", QueueOptions(cap=3))]
    assert {resolve(order, max_wait_ms=None).cap for order in permutations(levels)} == {1}


def test_zero_is_a_value_and_not_nothing() -> None:
    levels = [("session", QueueOptions(debounce_ms=0)), ("global", QueueOptions(debounce_ms=500))]
    settings = resolve(levels, max_wait_ms=None)
    assert (settings.debounce_ms, settings.max_wait_ms) == (0, 0)


def test_max_wait_is_what_is_configured_and_never_longer_than_a_duration_may_be() -> None:
    settings = resolve([], max_wait_ms=0)
    assert (settings.max_wait_ms, settings.origins["max_wait_ms"]) == (0, "global")
    longest = resolve([("session", QueueOptions(debounce_ms=DURATION_MAX_MS))], max_wait_ms=None)
    assert longest.max_wait_ms == DURATION_MAX_MS
    with pytest.raises(ConfigError, match="max_wait_ms"):
        resolve([], max_wait_ms=-1)


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no level 'sesion'.*session"):
        resolve([("sesion", QueueOptions())], max_wait_ms=None)


@effort(40)
@given(levels=st.lists(st.tuples(st.sampled_from(LEVELS), OPTIONS), unique_by=lambda level: level[0]))
def test_every_value_is_that_of_the_strongest_level_that_sets_it(levels: list[tuple[str, QueueOptions]]) -> None:
    found = resolve(levels, max_wait_ms=None)
    by_name = dict(levels)
    for name in NAMES:
        setting = [level for level in LEVELS if level in by_name and getattr(by_name[level], name) is not None]
        if setting:
            assert found.origins[name] == setting[0]
            assert getattr(found, name) == getattr(by_name[setting[0]], name)
        else:
            assert found.origins[name] == "default"
            assert getattr(found, name) == getattr(QueueSettings(), name)


@given(upper=OPTIONS, lower=OPTIONS)
def test_merging_two_levels_equals_resolving_them(upper: QueueOptions, lower: QueueOptions) -> None:
    merged = resolve([("session", merge(upper, lower))], max_wait_ms=None)
    both = resolve([("session", upper), ("channel", lower)], max_wait_ms=None)
    assert [getattr(merged, name) for name in NAMES] == [getattr(both, name) for name in NAMES]


@given(options=OPTIONS)
def test_options_come_back_from_json_as_they_were(options: QueueOptions) -> None:
    body = options_to_json(options)
    assert None not in body.values()
    assert options_from_json(json.loads(json.dumps(body))) == options


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ([], "are a mapping"),
        ({"moed": "steer"}, "no queue option 'moed'"),
        ({"mode": "fast"}, "no mode 'fast'"),
        ({"drop": 5}, "no drop policy 5"),
        ({"cap": 0}, "cap must be"),
        ({"cap": True}, "cap must be"),
        ({"debounce_ms": 1.5}, "debounce_ms must be"),
    ],
)
def test_anything_else_is_refused_by_name(body: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options_from_json(body)
