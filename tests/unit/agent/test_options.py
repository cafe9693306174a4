"""The settings of a session: checked where they are written, and never half applied."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from laneway import ConfigError
from laneway.mail import Mode
from laneway.options import (
    LaneHandlerConfig,
    PermissionPolicy,
    PriorityBoostConfig,
    RateLimitConfig,
    RetryPolicyConfig,
    SessionOptions,
    SessionQueueConfig,
    merge,
)
from laneway.records import Boost, Effect, RateLimit, RetryPolicy

# The block of the configuration file that people have, as a parser gives it.
BLOCK: dict[str, Any] = {
    "control_max_concurrency": 2,
    "query_max_concurrency": 10,
    "execute_max_concurrency": 5,
    "generate_max_concurrency": 1,
    "enable_metrics": True,
    "enable_dlq": True,
    "enable_alerts": True,
    "storage_path": "./queue_data",
    "default_timeout_ms": 60000,
    "retry_policy": {"strategy": "exponential", "max_retries": 3, "initial_delay_ms": 100},
    "rate_limit": {"limit_type": "per_second", "max_operations": 100},
    "priority_boost": {"strategy": "standard", "deadline_ms": 300000},
    "pressure_threshold": 50,
    "lane_timeouts": {"query": 30000, "Execute": 120000},
    "lane_handlers": {"Execute": {"mode": "external", "timeout_ms": 1000}},
}


def test_the_defaults_of_a_queue_are_those_that_people_know() -> None:
    config = SessionQueueConfig()
    widths = [config.concurrency_of(lane) for lane in ("control", "query", "execute", "generate")]
    assert widths == [2, 4, 2, 1]
    assert not config.enable_dlq
    assert not config.enable_metrics
    assert not config.enable_alerts
    assert config.dlq_max_size == 1000
    assert (config.default_timeout_ms, config.storage_path, config.retry_policy) == (None, None, None)
    assert (config.lane_handlers, config.lane_timeouts) == ({}, {})


def test_a_switch_is_a_keyword_a_bool_and_a_call() -> None:
    config = SessionQueueConfig(enable_dlq=True)
    assert config.enable_dlq
    assert config.enable_dlq == True  # noqa: E712 - that it can be compared is the claim
    assert repr(config.enable_dlq) == "True"
    assert config.enable_metrics() is config
    assert config.enable_metrics
    config.enable_dlq = False
    assert not config.enable_dlq
    config.enable_dlq(max_size=7)
    assert config.enable_dlq
    assert config.dlq_max_size == 7
    config.enable_alerts = config.enable_dlq
    assert config.enable_alerts
    assert len({config.enable_alerts, config.enable_dlq}) == 1


def test_all_features_are_switched_on_together_and_what_was_set_before_stays() -> None:
    config = SessionQueueConfig()
    assert config.with_lane_features() is config
    assert all((config.enable_dlq, config.enable_metrics, config.enable_alerts))
    assert config.default_timeout_ms == 60_000
    assert config.retry_policy == RetryPolicyConfig("exponential", 3, 100)
    mine = SessionQueueConfig(default_timeout_ms=5, dlq_max_size=9, retry_policy=RetryPolicyConfig("none"))
    mine.with_lane_features()
    assert (mine.default_timeout_ms, mine.dlq_max_size, mine.retry_policy) == (5, 9, RetryPolicyConfig("none"))


def test_the_setters_can_be_chained() -> None:
    config = (
        SessionQueueConfig()
        .set_default_timeout(1)
        .set_timeout(2)
        .set_lane_timeout("Query", 3)
        .set_control_concurrency(4)
        .set_query_concurrency(5)
        .set_execute_concurrency(6)
        .set_generate_concurrency(7)
        .set_lane_handler("Execute", mode="External", timeout_ms=8)
        .set_retry_policy("fixed", fixed_delay_ms=9)
        .set_rate_limit("per_minute", 10)
        .set_priority_boost("aggressive", 11)
        .set_pressure_threshold(12)
        .set_storage_path(Path("q"))
    )
    assert config == SessionQueueConfig(
        default_timeout_ms=2,
        lane_timeouts={"query": 3},
        control_max_concurrency=4,
        query_max_concurrency=5,
        execute_max_concurrency=6,
        generate_max_concurrency=7,
        lane_handlers={"execute": LaneHandlerConfig("external", 8)},
        retry_policy=RetryPolicyConfig("fixed", fixed_delay_ms=9),
        rate_limit=RateLimitConfig("per_minute", 10),
        priority_boost=PriorityBoostConfig("aggressive", 11),
        pressure_threshold=12,
        storage_path="q",
    )


def test_every_key_of_the_block_in_a_file_is_honoured() -> None:
    config = SessionQueueConfig.from_mapping(BLOCK)
    found = config.to_mapping()
    assert found["lane_timeouts"] == {"query": 30000, "execute": 120000}
    assert found["lane_handlers"] == {"execute": LaneHandlerConfig("external", 1000)}
    assert found["rate_limit"] == RateLimitConfig("per_second", 100)
    assert {name: found[name] for name in BLOCK if isinstance(BLOCK[name], int | str)} == {
        name: value for name, value in BLOCK.items() if isinstance(value, int | str)
    }
    assert SessionQueueConfig.from_mapping(found) == config


def test_the_timeout_of_a_lane_wins_and_generate_has_only_its_own() -> None:
    config = SessionQueueConfig(default_timeout_ms=100, lane_timeouts={"query": 5})
    assert [config.timeout_of(lane) for lane in ("control", "query", "execute", "generate")] == [100, 5, 100, None]
    assert config.set_lane_timeout("generate", 9).timeout_of("generate") == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_max_concurency": 4}, "did you mean 'query_max_concurrency'"),
        ({"query_max_concurrency": -1}, "query_max_concurrency must be a whole number"),
        ({"query_max_concurrency": True}, "query_max_concurrency must be a whole number"),
        ({"query_max_concurrency": 2.0}, "query_max_concurrency must be a whole number"),
        ({"enable_dlq": "yes"}, "enable_dlq must be True or False"),
        ({"dlq_max_size": 0}, "dlq_max_size must be a whole number"),
        ({"default_timeout_ms": 0}, "default_timeout_ms must be a whole number"),
        ({"lane_timeouts": {"exceute": 5}}, "did you mean 'execute'"),
        ({"lane_timeouts": {"query": 1, "Query": 2}}, "names lane 'query' twice"),
        ({"lane_timeouts": {"query": "5"}}, r"lane_timeouts\.query must be a whole number"),
        ({"lane_timeouts": 5}, "lane_timeouts maps lanes to settings"),
        ({"lane_handlers": {"query": {"mode": "extrenal"}}}, "did you mean 'external'"),
        ({"lane_handlers": {"query": "extrenal"}}, "did you mean 'external'"),
        ({"lane_handlers": {"query": 5}}, r"lane_handlers\.query must be a LaneHandlerConfig"),
        ({"retry_policy": {"strategy": "exponental"}}, "did you mean 'exponential'"),
        ({"retry_policy": {"max_retry": 2}}, "did you mean 'max_retries'"),
        ({"retry_policy": {"strategy": "fixed"}}, "needs fixed_delay_ms"),
        ({"rate_limit": {"max_operations": 3}}, "rate_limit needs limit_type"),
        ({"rate_limit": {"limit_type": "per_second"}}, "needs max_operations"),
        ({"rate_limit": {"limit_type": "per_second", "max_operations": 0}}, "max_operations must be a whole number"),
        ({"priority_boost": {"strategy": "fast"}}, "one of standard, aggressive, disabled"),
        ({"pressure_threshold": 0}, "pressure_threshold must be a whole number"),
        ({"storage_path": 5}, "storage_path must be text"),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_written(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionQueueConfig.from_mapping(settings)
    with pytest.raises(ConfigError, match=message):
        SessionQueueConfig(**settings)


def test_a_bare_word_is_the_mode_of_a_lane_handler() -> None:
    config = SessionQueueConfig(lane_handlers={"execute": "external"})
    assert config.lane_handlers == {"execute": LaneHandlerConfig("external")}


def test_a_refused_value_leaves_the_old_one_in_force() -> None:
    config = SessionQueueConfig(query_max_concurrency=3)
    with pytest.raises(ConfigError):
        config.query_max_concurrency = -1
    with pytest.raises(ConfigError, match="did you mean 'query_max_concurrency'"):
        config.query_max_concurency = 9  # type: ignore[attr-defined]
    with pytest.raises(ConfigError):
        config.set_lane_handler("qery", "internal")
    assert config == SessionQueueConfig(query_max_concurrency=3)


def test_a_copy_shares_nothing_that_can_change() -> None:
    config = SessionQueueConfig.from_mapping(BLOCK)
    for other in (config.copy(), copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):  # noqa: S301
        assert other == config
        other.lane_timeouts["query"] = 1
        other.lane_handlers.clear()
    assert config == SessionQueueConfig.from_mapping(BLOCK)
    assert config != BLOCK


def test_a_copy_checks_what_was_changed_behind_its_back() -> None:
    config = SessionQueueConfig()
    config.lane_timeouts["qury"] = 5
    with pytest.raises(ConfigError, match="did you mean 'query'"):
        config.copy()


def test_the_repr_shows_what_differs_from_the_defaults() -> None:
    assert repr(SessionQueueConfig(enable_dlq=True)) == "SessionQueueConfig(enable_dlq=True)"
    assert repr(SessionOptions(session_id="s1")) == "SessionOptions(session_id='s1')"


def test_the_small_records_become_those_of_the_lanes() -> None:
    assert RetryPolicyConfig("Exponential", 2, 50).to_retry() == RetryPolicy.exponential(2, 50)
    assert RetryPolicyConfig("fixed", 5, fixed_delay_ms=1000).to_retry() == RetryPolicy.fixed(5, 1000)
    assert RetryPolicyConfig("none").to_retry() == RetryPolicy.none()
    assert RateLimitConfig("per_second", 100).to_rate_limit() == RateLimit.per_second(100)
    assert RateLimitConfig("per_minute", 100).to_rate_limit() == RateLimit.per_minute(100)
    assert RateLimitConfig("per_hour", 100).to_rate_limit() == RateLimit.per_hour(100)
    assert RateLimitConfig("unlimited").to_rate_limit() is None
    assert PriorityBoostConfig().to_boost() == Boost.standard(300_000)
    assert PriorityBoostConfig("aggressive", 5).to_boost() == Boost.aggressive(5)
    assert PriorityBoostConfig("disabled").to_boost() == Boost.disabled()


def test_options_are_set_one_by_one_and_what_is_not_set_is_none() -> None:
    options = SessionOptions()
    assert set(options.to_mapping().values()) == {None}
    options.tenant_id = "acme-corp"
    options.session_store = store = object()
    options.mode = "Queue"
    options.tool_effects = {"deploy": "idempotent"}
    options.tool_lanes = {"deploy": "Query"}
    options.queue_config = SessionQueueConfig.from_mapping({"query_max_concurrency": 9})
    assert options.session_store is store
    assert options.mode is Mode.STEER
    assert options.tool_effects == {"deploy": Effect.IDEMPOTENT}
    assert options.tool_lanes == {"deploy": "query"}
    options.tools = [1, 2]
    assert isinstance(options.tools, tuple)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sesion_id": "s"}, "did you mean 'session_id'"),
        ({"session_id": ""}, "session_id must be text"),
        ({"max_tool_rounds": 0}, "max_tool_rounds must be a whole number"),
        ({"mode": "steeer"}, "there is no mode"),
        ({"on_crash": "rerun"}, "one of resume, report, ask"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": float("nan")}, "temperature must be a number"),
        ({"auto_compact_threshold": 1.5}, "auto_compact_threshold must be a number"),
        ({"auto_compact": 1}, "auto_compact must be True or False"),
        ({"tools": "read"}, "tools must be a list"),
        ({"tool_lanes": {"x": "qury"}}, "did you mean 'query'"),
        ({"tool_effects": {"x": "reed"}}, "did you mean 'read'"),
        ({"queue_config": 5}, "queue_config must be a SessionQueueConfig"),
        ({"queue_config": {"enable_dlqs": True}}, "did you mean 'enable_dlq'"),
        ({"permission_policy": "all"}, "permission_policy must be a PermissionPolicy"),
        ({"environment": {"A": 1}}, r"environment\.A must be text"),
        ({"system": b"x"}, "system must be text"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionOptions(**settings)
    options = SessionOptions()
    [(name, value)] = settings.items()
    with pytest.raises(ConfigError, match=message):
        setattr(options, name, value)
    assert options == SessionOptions()


def test_what_a_session_says_wins_over_what_its_agent_says_and_over_the_defaults() -> None:
    agent = SessionOptions(max_tool_rounds=9, system="be brief", queue_config=SessionQueueConfig())
    session = SessionOptions(max_tool_rounds=3)
    both = merge(merge(SessionOptions.defaults(), agent), session)
    assert (both.max_tool_rounds, both.system, both.output_max) == (3, "be brief", 30_000)
    assert (both.max_calls_per_answer, both.auto_compact_threshold, both.on_crash) == (64, 0.8, "resume")
    assert both.queue_config == agent.queue_config
    assert both.queue_config is not agent.queue_config
    assert agent.max_tool_rounds == 9


def test_a_policy_takes_lists_and_keeps_tuples() -> None:
    policy = PermissionPolicy.from_mapping({"allow": ["read"], "default_decision": "Deny"})
    assert policy == PermissionPolicy(allow=("read",), default_decision="deny")
    assert hash(policy) == hash(PermissionPolicy(allow=("read",), default_decision="deny"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alow": ["read"]}, "did you mean 'allow'"),
        ({"allow": "read"}, "allow must be a list of rules"),
        ({"deny": [5]}, "a rule is 1 to"),
        ({"ask": [""]}, "a rule is 1 to"),
        ({"default_decision": "maybe"}, "one of allow, deny, ask"),
        ({"enabled": "no"}, "enabled must be True or False"),
    ],
)
def test_a_wrong_policy_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PermissionPolicy.from_mapping(settings)
