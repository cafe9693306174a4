"""The JSON Schema and the reader agree: what one takes the other takes, what one refuses the other refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from laneway.config.schema import DIALECT, json_schema
from laneway.config.shape import Block, Leaf, root, spellings
from tests.unit.config.desk import SEED_001, SEED_003, SEED_003_WORKSPACE, nodes, read
from tests.unit.config.test_formats import plain

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
ENVIRON = {"CAP": "5", "MODE": "steer", "MAIN": "3"}

GOOD: list[Any] = [
    {},
    None,
    {"queue": None},
    {"queue": {"mode": "collect", "debounce_ms": 0, "cap": 1, "drop": "old"}},
    {"queue": {"mode": " Steer ", "debounceMs": 1000, "drop_policy": "SUMMARIZE"}},
    {"queue": {"mode": "steer+backlog", "debounce-ms": 1e3, "dropPolicy": "newest"}},
    {"queue": {"mode": "steer_backlog", "on_crash": "RERUN", "max_wait_ms": None, "expiresMs": 1}},
    {"queue": {"mode": "Follow-Ups", "cap": 100_000, "debounceIdle": True}},
    {"queue": {"cap": "${CAP}", "mode": 'env("MODE")', "drop": "${NO:-old}"}},
    {"queue": {"by_channel": {"discord": "collect", "slack": {"cap": 5}, "x y": None, "é": {"mode": None}}}},
    {"messages": {"queue": {"debounceMsByChannel": {"discord": 5}}}},
    {"messages": None, "agents": {"defaults": None}},
    {"lanes": {"main": 4, "a/b": {"concurrency": 0, "priority": 9, "ageing_ms": None}, "x": "${MAIN}"}},
    {"queue": {"lanes": {"main": {"concurrency": 1}}}},
    {"agents": {"defaults": {"maxConcurrent": 4, "subagents": {"max-concurrent": 2}}}},
    {"agents": {"defaults": {"maxConcurrent": 4}}, "lanes": {"main": {"priority": 1}, "cron": 2}},
    {"builtins": {"spawn": {"config": {"max_concurrent": 5}}}, "lanes": {"subagent": 4}},
    {"maxConcurrent": None, "name": "x", "description": ""},
    {"workspaces": {"a": "rooms/a", "b": {"path": "p", "queue": {"mode": "steer"}, "lanes": {"main": 1}}, "c": None}},
    {"workspaces": {"a": {"messages": {"queue": {"cap": 4}}, "maxConcurrent": 1}}},
    {"default_model": "scripted", "system": None, "tools": ["read", " Bash "], "disabledTools": ["${NO:-ls}"]},
    {"tools": "${NO:-read,ls}", "environment": 'env("NO", "PATH")', "skill_dirs": [], "on_crash": "resume"},
    {"providers": {"x": {"apiKey": "${CAP}", "base-url": "http://x", "headers": {"A-b": "c"}, "models": None}}},
    {"providers": {"x": {"models": {"a/b": {"limit": {"context": 5}, "output_max": 5, "toolCall": False}}}}},
    {"queue": {"retry_policy": {"strategy": "None"}, "rateLimit": {"limit_type": "unlimited"}, "mode": "steer"}},
    {"queue": {"lane_timeouts": {"query": 1, "generate": 2}, "lane_handlers": {"execute": "external", "query": {}}}},
    {"queue": {"lane_handlers": {"query": {"labels": ["gpu", "os=linux"], "sticky": "Session", "stickyMs": 0}}}},
    {"queue": {"lane_handlers": {"query": {"labels": [], "sticky": None, "background_after_ms": None}}}},
    {"permissions": {"allow": ["*"], "deny": None, "default-decision": "DENY"}, "tool_lanes": {"t": "query"}},
    {
        "budgets": {"b": {"scope": "Run", "tokens": 5}},
        "identity": {"principal": "user:42", "agentTemplateId": None},
        "toolEffects": {"t": "read"},
    },
    {"mcp_servers": {"a": {"command": "x", "args": ["-v"], "env": {"A": "b"}, "lanes": {"t": "query"}}, "b": None}},
    {"mcpServers": {"a": {"url": "https://x", "headers": {"A-b": "c"}, "effects": {"t": "read"}, "startTimeoutMs": 5}}},
    {"confirmation": {"yoloLanes": ["query"], "timeout_action": "reject", "escalate_after_ms": None}, "planning": True},
    {"max_plan_steps": 5, "maxParallelTasks": 1, "max_subagent_depth": 0},
    {"auto_compact_threshold": 0.5, "session_store": "x", "max_tool_rounds": 1, "auto_compact": True},
    {"workspaces": {"a": {"providers": {"x": {}}, "tools": ["ls"]}}},
]
BAD: list[Any] = [
    [],
    5,
    "text",
    {"zzz": 1},
    {"Queue": {}},
    {"queue": 5},
    {"queue": []},
    {"queue": {"mode": "colect"}},
    {"queue": {"mode": None}},
    {"queue": {"mode": 5}},
    {"queue": {"drop": "steer"}},
    {"queue": {"on_crash": "re-run"}},
    {"queue": {"cap": 0}},
    {"queue": {"cap": 100_001}},
    {"queue": {"cap": 1.5}},
    {"queue": {"cap": "5"}},
    {"queue": {"cap": True}},
    {"queue": {"cap": [5]}},
    {"queue": {"cap": None}},
    {"queue": {"cap": "${CAP"}},
    {"queue": {"cap": "$${CAP}"}},
    {"queue": {"mode": "env(MODE)"}},
    {"queue": {"debounce_ms": -1}},
    {"queue": {"debounce_idle": "yes"}},
    {"queue": {"debounce_ms": 1, "debounceMs": 1}},
    {"queue": {"debounce-ms": 1, "debounceMs": 1}},
    {"queue": {"drop": "old", "drop-policy": "old"}},
    {"queue": {"by_channel": {"discord": 5}}},
    {"queue": {"by_channel": {"discord": {"lanes": {}}}}},
    {"queue": {"by_channel": {" x": "collect"}}},
    {"queue": {"by_channel": {"": "collect"}}},
    {"queue": {"by_channel": []}},
    {"messages": {"queue": {"lanes": {}}}},
    {"queue": {}, "messages": {"queue": {}}},
    {"queue": None, "messages": {"queue": None}},
    {"lanes": {}, "queue": {"lanes": {}}},
    {"lanes": {"main": 2}, "agents": {"defaults": {"maxConcurrent": 2}}},
    {"lanes": {"main": {"concurrency": 2}}, "agents": {"defaults": {"max_concurrent": 2}}},
    {"queue": {"lanes": {"main": 2}}, "agents": {"defaults": {"max-concurrent": 2}}},
    {"queue": {"lanes": {"subagent": 2}}, "agents": {"defaults": {"subagents": {"maxConcurrent": 2}}}},
    {"spawn": {"maxConcurrent": 2}, "builtins": {"spawn": {"config": {"max_concurrent": 2}}}},
    {"lanes": {"main": -1}},
    {"lanes": {"main": 1_000_001}},
    {"lanes": {"main": {"priority": 10}}},
    {"lanes": {"main": {"width": 1}}},
    {"lanes": {"a//b": 1}},
    {"lanes": {"/a": 1}},
    {"lanes": {"x" * 600: 1}},
    {"spawn": {"max_concurrent": 0}},
    {"name": 5},
    {"name": "x" * 201},
    {"name": None},
    {"workspaces": {"a": {"workspaces": {}}}},
    {"workspaces": {"a": {"queue": {}, "messages": {"queue": {}}}}},
    {"workspaces": {"a": {"maxConcurrent": 1, "max_concurrent": 1}}},
    {"workspaces": {"a": 5}},
    {"default_model": ""},
    {"tools": ["reed"]},
    {"tools": "read"},
    {"tools": [["read"]]},
    {"tools": {"read": True}},
    {"environment": [5]},
    {"queue": {"lane_timeouts": {"main": 5}}},
    {"queue": {"lane_timeouts": {"query": 0}}},
    {"queue": {"lane_handlers": {"query": "remote"}}},
    {"queue": {"lane_handlers": {"Query": {}}}},
    {"queue": {"lane_handlers": {"query": {"labels": ["a b"]}}}},
    {"queue": {"lane_handlers": {"query": {"labels": ["a,b"]}}}},
    {"queue": {"lane_handlers": {"query": {"labels": "gpu"}}}},
    {"queue": {"lane_handlers": {"query": {"sticky": "worker"}}}},
    {"queue": {"retry_policy": {"strategy": "linear"}}},
    {"queue": {"retry_policy": "fixed"}},
    {"queue": {"on_crash": "resume"}},
    {"queue": {"query_max_concurrency": -1}},
    {"on_crash": "rerun"},
    {"providers": {"x": {"base_url": "x"}}},
    {"providers": {"x": {"headers": {"": "x"}}}},
    {"providers": {"x": {"headers": {"A": 5}}}},
    {"providers": {"x": {"models": {"m": {"context_tokens": 5, "limit": {"context": 5}}}}}},
    {"providers": {"x": {"models": {"m": {"output_max": 5, "limit": {"output": 5}}}}}},
    {"providers": {"x": {"models": {"m": {"limit": {"in": 5}}}}}},
    {"permissions": {"allow": "*"}},
    {"permissions": {"allow": [""]}},
    {"tool_lanes": {"t": "main"}},
    {"mcp_servers": []},
    {"mcp_servers": {"a": {"url": "file:///x"}}},
    {"mcp_servers": {"a": {"command": "x", "token": "y"}}},
    {"mcp_servers": {"a": {"command": "x", "lanes": {"t": "main"}}}},
    {"mcp_servers": {"a": {"command": "x", "effect": "delete"}}},
    {"mcp_servers": {"a": {"command": "x", "timeout_ms": 0}}},
    {"confirmation": {"yolo_lanes": ["main"]}},
    {"confirmation": {"timeout_action": "approve"}},
    {"planning": 1},
    {"max_plan_steps": 0},
    {"auto_compact_threshold": 2},
    {"session_store": "x", "sessions_dir": "y"},
]


def reader_takes(document: Any) -> bool:
    return read(json.dumps(document), ".json", ENVIRON)[1] == []


def schema_takes(document: Any) -> bool:
    return VALIDATOR.is_valid(document)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == DIALECT == Draft202012Validator.META_SCHEMA["$id"]
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("document", GOOD, ids=repr)
def test_both_take_what_is_good(document: Any) -> None:
    assert (reader_takes(document), schema_takes(document)) == (True, True)


@pytest.mark.parametrize("document", BAD, ids=lambda document: repr(document)[:80])
def test_both_refuse_what_is_bad(document: Any) -> None:
    assert (reader_takes(document), schema_takes(document)) == (False, False)


@pytest.mark.parametrize(("text", "ending"), [(SEED_001, ".json5"), (SEED_003, ".yaml"), (SEED_003_WORKSPACE, ".yaml")])
def test_the_schema_takes_the_blocks_that_people_have(text: str, ending: str) -> None:
    assert VALIDATOR.is_valid(plain(nodes(text, ending)[0]))


def test_every_spelling_of_every_setting_is_in_the_schema() -> None:
    def check_block(block: Block, schema: dict[str, Any]) -> int:
        count = 0
        for name, way in block.keys.items():
            for spelling in spellings(name):
                made = SCHEMA["$defs"][schema["properties"][spelling]["$ref"].removeprefix("#/$defs/")]
                if isinstance(way, Leaf):
                    assert made["description"] == way.setting.says
                    count += 1
                elif isinstance(way, Block):
                    count += check_block(way, made)
        return count

    assert check_block(root(), SCHEMA) > 60


keys = st.sampled_from(["queue", "messages", "lanes", "max_concurrent", "maxConcurrent", "mode", "cap", "main", "drop"])
documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 30)
    | st.sampled_from(["collect", "old", "${CAP}", "x", ""])
    | st.floats(),
    lambda inner: st.dictionaries(keys, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(keys, documents, max_size=3))
def test_reader_and_schema_agree_on_anything(document: dict[str, Any]) -> None:
    assert reader_takes(document) == schema_takes(document)
