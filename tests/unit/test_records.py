"""Settings and records: defaults that are part of the contract, values that cannot be changed."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from enum import IntEnum, StrEnum
from typing import Any

import pytest

import laneway
from laneway import (
    Boost,
    Effect,
    Group,
    JobOptions,
    JobState,
    LaneConfig,
    Lanes,
    Priority,
    RateLimit,
    RetryPolicy,
    Snapshot,
    WaitReason,
)
from laneway.kernel.protocol import JobSpec

SETTINGS = [
    LaneConfig(concurrency=4, retry=RetryPolicy.exponential(3), rate_limit=RateLimit.per_second(5)),
    RetryPolicy.fixed(1, 2),
    RateLimit.per_minute(3),
    Boost.aggressive(1_000),
    Group(cap=4, lanes=["*/execute"], reserve={"s1/execute": 1}),
    Snapshot(running=1, waiting=2, max_concurrent=3),
]


def test_the_defaults_of_a_lane_are_those_of_the_contract() -> None:
    assert dataclasses.asdict(LaneConfig()) == {
        "concurrency": 1,
        "priority": 3,
        "queued_max": None,
        "timeout_ms": None,
        "wait_timeout_ms": None,
        "cancel_grace_ms": 5_000,
        "abandon_threads": False,
        "retry": None,
        "rate_limit": None,
        "boost": None,
        "ageing_ms": 60_000,
        "pressure_threshold": None,
        "fair_by": None,
        "exclusive": False,
        "alert_warning": 50,
        "alert_critical": 100,
    }


def test_the_defaults_of_lanes_and_submit_are_those_of_the_contract() -> None:
    made = {name: each.default for name, each in inspect.signature(Lanes.__init__).parameters.items()}
    assert {name: made[name] for name in ("max_concurrent", "groups", "host", "dlq_max_size", "threads_max")} == {
        "max_concurrent": None,
        "groups": None,
        "host": None,
        "dlq_max_size": 1000,
        "threads_max": 64,
    }
    assert (made["unknown"], made["close_timeout_ms"]) == ("refuse", 10_000)
    spec = JobSpec()
    assert (spec.priority, spec.effect, spec.weight) == (Priority.USER, Effect.WRITE, 1)
    for name in set(JobOptions.__annotations__) - {"priority", "effect", "weight", "tenant", "label", "signal"}:
        assert getattr(spec, name) is None


def test_policies_have_the_numbers_of_the_contract() -> None:
    policy = RetryPolicy.exponential(3)
    assert (policy.initial_delay_ms, policy.factor, policy.max_delay_ms, policy.jitter) == (100, 2, 30_000, 0)
    assert RetryPolicy.none().max_retries == 0
    assert [(step.remaining_percent, step.levels) for step in Boost.standard().steps] == [(75, 1), (50, 2), (25, 3)]
    aggressive = [(step.remaining_percent, step.levels) for step in Boost.aggressive().steps]
    assert aggressive == [(80, 2), (60, 4), (40, 6), (20, 8)]
    assert Boost.disabled().steps == ()
    windows = [RateLimit.per_second(1), RateLimit.per_minute(1), RateLimit.per_hour(1)]
    assert [limit.window_ms for limit in windows] == [1_000, 60_000, 3_600_000]


def test_public_enums_are_text_and_levels_are_numbers() -> None:
    assert all(issubclass(enum, StrEnum) for enum in (Effect, JobState, WaitReason))
    assert issubclass(Priority, IntEnum)
    assert Priority.BACKGROUND < Priority.SCHEDULED < Priority.USER
    assert [int(level) for level in Priority] == [0, 1, 2]
    assert [str(effect) for effect in Effect] == ["read", "idempotent", "write"]


def test_five_states_are_final() -> None:
    final = {state for state in JobState if state.is_final}
    assert final == {"succeeded", "failed", "cancelled", "timed_out", "dead"}


@pytest.mark.parametrize("record", SETTINGS, ids=lambda record: type(record).__name__)
def test_records_are_values_that_cannot_be_changed(record: object) -> None:
    assert dataclasses.is_dataclass(record)
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, 1)
    assert pickle.loads(pickle.dumps(record)) == record  # noqa: S301 - our own bytes
    assert not hasattr(record, "__dict__")


def test_every_public_record_is_frozen() -> None:
    records: list[Any] = [one for name in laneway.__all__ if dataclasses.is_dataclass(one := getattr(laneway, name))]
    assert len(records) > 10
    records.remove(laneway.SessionOptions)  # filled in one by one, and checked at each
    assert all(one.__dataclass_params__.frozen for one in records)


def test_a_groups_lists_cannot_be_changed_from_outside() -> None:
    lanes, reserve = ["a", "b"], {"a": 1}
    group = Group(cap=2, lanes=lanes, reserve=reserve)
    lanes.append("c")
    reserve["a"] = 2
    assert (group.lanes, group.reserve["a"]) == (("a", "b"), 1)
