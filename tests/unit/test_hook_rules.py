"""Hooks without their code: which there may be, which events they fit, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError
from laneway.kernel.hooks import (
    COMMAND_MAX,
    EVENTS,
    GATES,
    OBSERVERS,
    SILENT,
    HookAction,
    HookVerdict,
    NonsenseError,
    changed,
    hook_rule,
    own_copy,
    read_answer,
)

# The names that code written for the other surface uses.
NAMES = [
    "pre_tool_use",
    "post_tool_use",
    "generate_start",
    "generate_end",
    "session_start",
    "session_end",
    "skill_load",
    "skill_unload",
    "pre_prompt",
    "post_response",
    "on_error",
    "pre_context_perception",
    "post_context_perception",
    "on_success",
    "pre_memory_recall",
    "post_memory_recall",
    "pre_planning",
    "post_planning",
    "pre_reasoning",
    "post_reasoning",
    "on_rate_limit",
    "on_confirmation",
    "budget_threshold_hit",
    "passivation_requested",
    "peer_invocation",
]


def call(tool: str = "bash", **args: Any) -> dict[str, Any]:
    """The payload of a call."""
    return {"session_id": "s-1", "tool": tool, "args": args, "working_directory": "/ws"}


def fits(matcher: Mapping[str, Any], payload: Mapping[str, Any], event: str = "pre_tool_use") -> bool:
    return hook_rule("h", event, matcher).matcher.fits(payload)


# ---- which there may be ----


def test_every_name_of_the_known_surface_is_an_event() -> None:
    assert sorted(EVENTS) == sorted(NAMES)
    assert len({*GATES, *OBSERVERS, *SILENT}) == len(EVENTS)


@pytest.mark.parametrize(
    ("event", "hint"), [("pre_tool", "pre_tool_use"), ("PreToolUse", "pre_tool_use"), ("on_errors", "on_error")]
)
def test_an_unknown_event_is_refused_with_the_one_that_was_meant(event: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hook_rule("h", event)
    assert f"did you mean {hint!r}?" in str(caught.value.hint)


@pytest.mark.parametrize("hook_id", ["", None, 7, "x" * 201, b"h"])
def test_an_id_is_text_of_a_bounded_length(hook_id: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        hook_rule(hook_id, "pre_tool_use")
    assert caught.value.setting == "hook_id"


@pytest.mark.parametrize(
    ("matcher", "setting"),
    [
        ({"tools": "bash"}, "tools"),
        ({"Tool": "bash"}, "Tool"),
        ({7: "bash"}, "7"),
        ({"tool": ["bash"]}, "matcher.tool"),
        ({"tool": None}, "matcher.tool"),
        ({"tool": ""}, "matcher.tool"),
        ({"command_pattern": "rm ("}, "matcher.command_pattern"),
        ({"command_pattern": 5}, "matcher.command_pattern"),
        ({"path_pattern": "src/[ab]"}, "matcher.path_pattern"),
        ({"path_pattern": " "}, "matcher.path_pattern"),
        ({"path_pattern": "x" * 5_000}, "matcher.path_pattern"),
        ("bash", "matcher"),
        (["tool"], "matcher"),
    ],
)
def test_a_matcher_that_cannot_work_is_refused_when_it_is_registered(matcher: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hook_rule("h", "pre_tool_use", matcher)
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("event", "matcher"),
    [
        ("generate_start", {"tool": "bash"}),
        ("session_start", {"path_pattern": "**"}),
        ("pre_prompt", {"command_pattern": "rm"}),
        ("post_response", {"skill": "deploy"}),
    ],
)
def test_a_matcher_that_would_never_fit_its_event_is_refused(event: str, matcher: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"does not go with {event}"):
        hook_rule("h", event, matcher)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"prio": 1}, "prio"),
        ({"priority": "high"}, "config.priority"),
        ({"priority": 1.5}, "config.priority"),
        ({"timeout_ms": 0}, "config.timeout_ms"),
        ({"timeout_ms": None}, "config.timeout_ms"),
        ({"timeout_ms": True}, "config.timeout_ms"),
        ({"timeout_ms": float("inf")}, "config.timeout_ms"),
        ({"max_retries": -1}, "config.max_retries"),
        ({"max_retries": 101}, "config.max_retries"),
        ({"async_execution": 1}, "config.async_execution"),
        ("fast", "config"),
    ],
)
def test_a_config_that_cannot_be_is_refused_when_it_is_registered(config: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hook_rule("h", "post_tool_use", None, config)
    assert caught.value.setting == setting


@pytest.mark.parametrize("event", GATES)
def test_a_gate_is_always_waited_for(event: str) -> None:
    with pytest.raises(ConfigError, match="is waited for"):
        hook_rule("h", event, None, {"async_execution": True})
    assert not hook_rule("h", event, None, {"async_execution": False}).config.async_execution


def test_what_is_not_said_has_a_default() -> None:
    config = hook_rule("h", "on_error").config
    assert (config.priority, config.timeout_ms, config.async_execution, config.max_retries) == (100, 5_000, False, 0)


# ---- which events they fit ----


def test_a_hook_without_a_matcher_fits_everything() -> None:
    assert hook_rule("h", "pre_tool_use").matcher.fits({})
    assert fits({}, call())


@pytest.mark.parametrize(
    ("pattern", "tool", "expected"),
    [
        ("bash", "bash", True),
        ("Bash", "bash", True),
        ("bash", "bash2", False),
        ("mcp__*", "mcp__git__log", True),
        ("mcp__*", "xmcp__git", False),
        ("*", "anything", True),
        ("read?", "reads", True),
    ],
)
def test_a_tool_is_named_or_meant_by_a_pattern(pattern: str, tool: str, expected: bool) -> None:
    assert fits({"tool": pattern}, call(tool)) is expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"command": "git push --force"}, True),
        ({"command": "git pull"}, False),
        ({"cmd": "git push -f"}, True),
        ({"script": "cd x\ngit push -f"}, True),
        ({"command": ["git", "push", "-f"]}, True),
        ({"command": None}, False),
        ({"text": "git push -f"}, False),
        ({}, False),
    ],
)
def test_a_command_pattern_is_searched_for_in_commands(args: dict[str, Any], expected: bool) -> None:
    assert fits({"command_pattern": r"push\s+(-f|--force)"}, call(**args)) is expected


@pytest.mark.parametrize("command", [7, {"a": 1}, "x" * (COMMAND_MAX + 1)])
def test_a_command_that_cannot_be_searched_fits_because_a_gate_that_is_not_asked_stops_nobody(command: Any) -> None:
    assert fits({"command_pattern": "rm"}, call(command=command))


@pytest.mark.parametrize(
    ("pattern", "args", "expected"),
    [
        ("**/.env*", {"path": ".env"}, True),
        ("**/.env*", {"path": "a/b/.ENV.local"}, True),
        ("**/.env*", {"path": "a/../.env"}, True),
        ("**/.env*", {"path": "/ws/./.env"}, True),
        ("**/.env*", {"path": "env"}, False),
        ("/ws/secret/**", {"path": "secret/key"}, True),
        ("secret/**", {"file_path": "/ws/secret/key"}, True),
        ("secret/**", {"source": "a", "destination": "secret/a"}, True),
        ("secret/**", {"paths": ["a", "secret/b"]}, True),
        ("secret/**", {"output_dir": "secret/x"}, True),
        ("secret/**", {"content": "secret/x"}, False),
        ("secret/**", {"path": None}, False),
        ("*.py", {"path": "src/a.py"}, True),
        ("src/*.py", {"path": "src/a.py"}, True),
    ],
)
def test_a_path_pattern_is_held_against_whatever_is_a_path(pattern: str, args: dict[str, Any], expected: bool) -> None:
    assert fits({"path_pattern": pattern}, call("write", **args)) is expected


@pytest.mark.parametrize("path", [7, ["a", 7], "a\0b", {"x": 1}])
def test_a_path_that_cannot_be_read_fits(path: Any) -> None:
    assert fits({"path_pattern": "secret/**"}, call("write", path=path))


def test_a_tool_that_lists_where_it_stands_is_about_the_folder() -> None:
    assert fits({"path_pattern": "/ws"}, call("ls"))
    assert not fits({"path_pattern": "/ws"}, call("deploy"))


def test_everything_that_a_matcher_says_must_hold() -> None:
    matcher = {"tool": "bash", "command_pattern": "rm", "session_id": "s-*"}
    assert fits(matcher, call(command="rm x"))
    assert not fits(matcher, call(command="ls"))
    assert not fits(matcher, {**call(command="rm x"), "session_id": "t-1"})
    assert not fits(matcher, call("shell", command="rm x"))


def test_a_skill_is_matched_by_its_name() -> None:
    assert fits({"skill": "deploy*"}, {"skill": "deploy-web"}, "skill_load")
    assert fits({"skill": "deploy*"}, {"skill_name": "deploy-web"}, "skill_load")
    assert not fits({"skill": "deploy*"}, {"skill": None}, "skill_load")
    assert not fits({"skill": "deploy*"}, {}, "skill_load")


@pytest.mark.parametrize("args", [None, "rm", 7, []])
def test_arguments_that_are_no_mapping_break_nothing(args: Any) -> None:
    assert not fits({"command_pattern": "rm"}, {"args": args})


# ---- what their answers mean ----

GATE = hook_rule("guard", "pre_tool_use")


@pytest.mark.parametrize("answer", [None, "continue", " Continue ", {"action": "continue"}, HookAction.CONTINUE])
def test_nothing_and_continue_go_on(answer: object) -> None:
    assert read_answer(answer, GATE) == HookVerdict()


@pytest.mark.parametrize("action", ["block", "skip"])
def test_block_and_skip_say_why(action: str) -> None:
    verdict = read_answer({"action": action, "reason": "not today"}, GATE)
    assert (verdict.action, verdict.reason) == (action, "not today")
    assert "'guard'" in read_answer({"action": action}, GATE).reason
    assert read_answer(action, GATE).action == action


def test_a_reason_of_any_kind_becomes_text_of_a_bounded_length() -> None:
    assert read_answer({"action": "block", "reason": ["a", 1]}, GATE).reason == "['a', 1]"
    assert len(read_answer({"action": "block", "reason": "x" * 1_000_000}, GATE).reason) == 2_000


def test_retry_says_after_how_long() -> None:
    assert read_answer({"action": "retry", "delay_ms": 250}, GATE).delay_ms == 250
    assert read_answer({"action": "retry"}, GATE).delay_ms == 1_000
    assert read_answer({"action": "continue", "delay_ms": 250}, GATE).delay_ms == 0


@pytest.mark.parametrize("name", ["modified", "args", "arguments"])
def test_changed_arguments_have_three_names_and_are_a_copy(name: str) -> None:
    mine = {"path": "a", "more": [1]}
    verdict = read_answer({"action": "continue", name: mine}, GATE)
    mine["more"].append(2)  # type: ignore[attr-defined]
    assert verdict.arguments == {"path": "a", "more": [1]}


class Odd:
    """What somebody may hand back by mistake."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "answer",
    [
        True,
        False,
        0,
        1,
        1.5,
        "",
        "yes",
        "allow",
        "deny",
        b"block",
        [],
        ["continue"],
        {},
        object(),
        Odd(),
        Odd,
        {"action": None},
        {"action": True},
        {"action": "allow"},
        {"action": ["continue"]},
        {"action": Odd()},
        {"decision": "continue"},
        {"action": "continue", "modifed": {"a": 1}},
        {"action": "continue", 7: 1},
        {"action": "continue", "args": [1]},
        {"action": "continue", "args": "x"},
        {"action": "continue", "args": {1: 2}},
        {"action": "continue", "args": {}, "modified": {}},
        {"action": "skip", "args": {"a": 1}},
        {"action": "retry", "args": {"a": 1}},
        {"action": "retry", "delay_ms": -1},
        {"action": "retry", "delay_ms": "soon"},
        {"action": "retry", "delay_ms": float("nan")},
        {"action": "retry", "delay_ms": True},
        {"action": "retry", "delay_ms": 10**30},
    ],
)
def test_everything_else_is_nonsense(answer: object) -> None:
    with pytest.raises(NonsenseError):
        read_answer(answer, GATE)


WORDS = st.sampled_from(["continue", "block", "skip", "retry", "Continue ", "allow", "action", "args", "delay_ms", ""])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS | st.binary(max_size=3)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.integers(), inner, max_size=4)
)


@pytest.mark.slow
@given(answer=ANYTHING, event=st.sampled_from(GATES))
def test_only_who_says_so_goes_on(answer: Any, event: str) -> None:
    try:
        verdict = read_answer(answer, hook_rule("h", event))
    except NonsenseError:
        return
    said = answer["action"] if isinstance(answer, dict) else answer
    assert verdict.action == ("continue" if said is None else said.strip().casefold())
    assert (verdict.arguments is None) or (verdict.action == "continue" and event in ("pre_tool_use", "pre_prompt"))


def test_a_slip_in_a_name_is_pointed_out() -> None:
    with pytest.raises(NonsenseError, match="'modifed', not 'modified'"):
        read_answer({"action": "continue", "modifed": {}}, GATE)


def test_a_prompt_can_be_changed_and_nothing_else_of_that_event() -> None:
    rule = hook_rule("h", "pre_prompt")
    assert read_answer({"action": "continue", "modified": {"prompt": "b"}}, rule).arguments == {"prompt": "b"}
    for nonsense in ({"prompt": 1}, {"text": "b"}, {"prompt": "b", "session_id": "x"}, {}):
        with pytest.raises(NonsenseError):
            read_answer({"action": "continue", "modified": nonsense}, rule)


@pytest.mark.parametrize("event", ["generate_start", "pre_planning"])
def test_where_nothing_can_be_changed_a_change_is_nonsense(event: str) -> None:
    with pytest.raises(NonsenseError, match="may change nothing"):
        read_answer({"action": "continue", "args": {"a": 1}}, hook_rule("h", event))


def test_a_block_stays_one_whatever_else_is_in_the_answer() -> None:
    verdict = read_answer({"action": "block", "reason": "no", "args": 7}, GATE)
    assert verdict == HookVerdict(action=HookAction.BLOCK, reason="no")


def test_later_hooks_see_what_was_changed() -> None:
    assert changed("pre_tool_use", {"tool": "a", "args": {"x": 1}}, {"y": 2}) == {"tool": "a", "args": {"y": 2}}
    assert changed("pre_prompt", {"prompt": "a", "run_id": "r"}, {"prompt": "b"}) == {"prompt": "b", "run_id": "r"}


def test_a_copy_of_a_payload_shares_nothing_that_can_be_changed() -> None:
    kept: dict[str, Any] = {"a": [1, {"b": {"c"}}], "d": (1, [2]), "e": None}
    copied = own_copy(kept)
    assert copied == kept
    copied["a"][1]["b"].add("x")
    copied["d"][1].append(3)
    copied["a"].append(2)
    assert kept == {"a": [1, {"b": {"c"}}], "d": (1, [2]), "e": None}
